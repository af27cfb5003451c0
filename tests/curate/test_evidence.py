"""Removals replayed, rules undone and documents taken down on a finished corpus; what is kept for the next one."""

from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.core.artifacts import Artifact
from headwater.core.errors import InputError, UserError
from headwater.curate.audit import audit, draw, some_of_each_rule
from headwater.curate.config import CollectConfig, CurateConfig
from headwater.curate.dedup.compare import containment, jaccard
from headwater.curate.evidence import clopper_pearson, overlap, wilson
from headwater.curate.remake import copies_of, ids_in, remake, taken_down
from headwater.curate.report_page import report_page
from tests.conftest import RunCli
from tests.curate.helpers import collect, curate, hashes, write_rows
from tests.curate.test_corpus import changed, kept, prose, removed, report

TEXT = st.text(alphabet="ab 中文，。1.'Ａ é\n", max_size=60)


@settings(max_examples=60)
@given(TEXT, TEXT)
def test_plain_python_and_compiled_code_give_the_same_scores(first: str, second: str) -> None:
    assert overlap(first, second, width=2) == pytest.approx(jaccard(first, second, width=2))
    assert overlap(first, second, width=2, measure="containment") == pytest.approx(containment(first, second, width=2))


def test_intervals_are_those_of_the_books() -> None:
    assert wilson(0, 0) == (0.0, 1.0) == clopper_pearson(0, 0)
    assert wilson(5, 60) == pytest.approx((0.0361, 0.1807), abs=1e-4)
    assert clopper_pearson(5, 60) == pytest.approx((0.0276, 0.1839), abs=1e-4)
    assert clopper_pearson(0, 100) == pytest.approx((0.0, 1 - 0.025 ** (1 / 100)), abs=1e-9)
    assert clopper_pearson(100, 100) == pytest.approx((0.025 ** (1 / 100), 1.0), abs=1e-9)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """A corpus in which documents went by many rules."""
    place = tmp_path_factory.mktemp("evidence")
    rows: list[dict[str, Any]] = []
    for seed in range(30):
        text = prose(seed, chinese=seed % 2 == 0)
        rows += [{"text": text, "domain": "web"}, {"text": changed(text, 2, seed), "domain": "web"}]
        if seed % 5 == 0:
            rows.append({"text": text, "domain": "books"})
    question = prose(900, 40)
    write_rows(place / "benchmarks" / "quiz.jsonl", [{"id": "q", "question": question}])
    rows += [{"text": f"{prose(901)} {question} {prose(902)}"}, {"text": "short"}, {"text": "Der Hund läuft. " * 20}]
    rows += [{"text": f"{prose(910)}\n{prose(911, 80)}"}, {"text": f"{prose(912)}\n{prose(911, 80)}"}]
    write_rows(place / "raw" / "web.jsonl", rows)
    source = {"name": "web", "paths": "*.jsonl", "domain": ""}
    collected = collect(place / "ws", CollectConfig(root=str(place / "raw"), sources=(source,), shard_bytes=15_000))
    config = CurateConfig(
        quality={"rules": ["gopher.length"]},
        clean={"boilerplate": False},
        dedup={"ngram": True},
        decontaminate={"root": str(place / "benchmarks"), "benchmarks": ["quiz.jsonl"]},
    )
    return curate(place / "ws", collected, config)


def test_every_removal_holds_when_it_is_replayed(corpus: Artifact) -> None:
    found = audit(corpus.path, sample=1000)
    rules = {
        "dedup.exact", "dedup.minhash", "dedup.ngram-passage", "decontaminate.question", "clean.too-short",
        "language.not-accepted",
    }  # fmt: skip
    assert rules <= set(found["by_rule"])
    assert (found["drawn"], found["false"], found["not_replayed"]) == (found["removals"], 0, 0)
    assert found["wilson_95"][0] == 0.0 < found["wilson_95"][1] < 0.1
    some = audit(corpus.path, sample=5, seed=3)
    assert [one["id"] for one in some["samples"]] == [
        one["id"] for one in audit(corpus.path, sample=5, seed=3)["samples"]
    ]
    assert [one["rule"] for one in audit(corpus.path, rules=["dedup.exact"])["samples"]] == ["dedup.exact"] * 6


def test_a_removal_that_does_not_hold_is_found(corpus: Artifact, tmp_path: Path) -> None:
    forged = tmp_path / "ws" / "curate" / corpus.fingerprint
    forged.parent.mkdir(parents=True)
    (tmp_path / "ws" / "collect").symlink_to(corpus.path.parent.parent / "collect")
    rows = removed(corpus)
    wrong = [row for row in rows if row["rule"] == "dedup.minhash"][:3]
    stays = [document.id for document in kept(corpus).values()]
    wrong[0]["kept_id"] = next(name for name in stays if name != wrong[0]["kept_id"])  # another document altogether
    wrong[1]["kept_id"] = wrong[2]["id"]  # one that went itself
    wrong[2]["score"] = 0.99  # not what it scores
    forged.mkdir()
    for name in ("manifest.json", "report.json"):
        (forged / name).write_bytes((corpus.path / name).read_bytes())
    pq.write_table(
        pa.Table.from_pylist(rows, pq.read_schema(corpus.file("removed.parquet"))), forged / "removed.parquet"
    )
    found = audit(forged, sample=1000)
    assert {one["id"] for one in found["samples"] if one["holds"] is False} == {row["id"] for row in wrong}
    assert found["false"] == 3


def test_people_can_label_what_was_drawn(corpus: Artifact, tmp_path: Path) -> None:
    rows = [{**one, "false": number == 0} for number, one in enumerate(audit(corpus.path, sample=10)["samples"])]
    labels = tmp_path / "labels.jsonl"
    labels.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    said = audit(corpus.path, sample=1, labels=labels)["labelled"]
    assert (said["labelled"], said["false"], said["false_rate"]) == (10, 1, 0.1)
    labels.write_text("no json")
    with pytest.raises(InputError, match="cannot read the labels"):
        audit(corpus.path, sample=1, labels=labels)


def test_a_corpus_is_made_again_with_a_rule_undone_and_with_documents_taken_down(
    corpus: Artifact, tmp_path: Path
) -> None:
    restored = remake(corpus, undo=["dedup.minhash"])
    assert restored.inputs["collect"] == corpus.inputs["collect"]
    assert restored.identity["undo"] == ["dedup.minhash"]
    assert restored.counts["documents"] > corpus.counts["documents"]
    assert remake(corpus, undo=["dedup.minhash"]).path == restored.path, "found the second time"
    victim = next(document for document in kept(corpus).values() if document.domain == "books")
    file = tmp_path / "ids.txt"
    file.write_text(f"{victim.id}\n")
    without = remake(corpus, takedown=ids_in([file]))
    assert victim.text not in kept(without)
    assert taken_down(without) == [victim.id]
    assert set(taken_down(remake(without, takedown=frozenset({"0" * 32})))) == {victim.id, "0" * 32}
    copy = next(row for row in removed(corpus) if row["kept_id"] == victim.id)
    assert copies_of(corpus, frozenset({copy["id"]})) == [
        {"id": copy["id"], "rule": copy["rule"], "kept_id": victim.id}
    ]
    file.write_text("not-an-id\n")
    with pytest.raises(UserError, match="no document's id"):
        ids_in([file])


def test_a_new_shard_costs_only_itself(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    for part in range(3):
        write_rows(raw / f"part-{part}.jsonl", [{"text": prose(seed)} for seed in range(part * 10, part * 10 + 12)])
    source = {"name": "all", "paths": "part-*.jsonl"}
    config = CurateConfig(quality={"rules": []})

    def entries() -> dict[str, float]:
        return {path.name: path.stat().st_mtime for path in (tmp_path / "ws" / "curate" / ".shards").iterdir()}

    settings_ = CollectConfig(root=str(raw), sources=(source,), shard_bytes=14_000)
    curate(tmp_path / "ws", collect(tmp_path / "ws", settings_), config)
    first = entries()
    write_rows(raw / "part-3.jsonl", [{"text": prose(seed)} for seed in range(28, 40)])
    grown = curate(tmp_path / "ws", collect(tmp_path / "ws", settings_), config)
    assert len(entries()) == len(first) + 1
    fresh = curate(tmp_path / "fresh", collect(tmp_path / "fresh", settings_), config)
    assert hashes(grown) == hashes(fresh), "and the result is that of a run from nothing"
    broken = next((tmp_path / "ws" / "curate" / ".shards").iterdir()) / "signatures"
    data = broken.read_bytes()
    broken.unlink()  # the entry's link alone, not the corpus's file
    broken.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    again = curate(
        tmp_path / "ws", collect(tmp_path / "ws", settings_), config.model_copy(update={"shard_bytes": 1 << 20})
    )
    assert kept(again).keys() == kept(fresh).keys(), "a damaged entry is made anew"


def test_what_is_drawn_of_each_rule_is_what_is_drawn_of_it_alone() -> None:
    rows = [{"id": str(number), "rule": "cba"[number * number % 7 % 3]} for number in range(300)]
    alone = [list(draw(rows, 5, 0, [rule])) for rule in "abc"]
    assert [len(some) for some in alone] == [5, 5, 5]
    assert list(draw(rows, 5, 0, of_each_rule=True)) == [row for some in alone for row in some]


def test_the_page_shows_where_everything_went(corpus: Artifact) -> None:
    samples = some_of_each_rule(corpus.path, 2)
    canaries = orjson.loads(corpus.file("canaries.json").read_bytes())
    page = report_page(report(corpus), canaries, samples, {"abc": {"train": {"web": 5}}}, "title <b>")
    assert "title &lt;b&gt;" in page
    assert "http" not in page.split("<h2>Removed")[0]
    for rule in report(corpus)["dropped"]:
        assert rule in page
    for name, row in [*report(corpus)["by_language"].items(), *report(corpus)["by_domain"].items()]:
        inside = page.partition(f"<summary>where {name} went</summary>")[2].partition("</details>")[0]
        for rule, lost in row["dropped"].items():
            numbers = "".join(f"<td>{lost[field]:,}</td>" for field in ("documents", "bytes", "units"))
            assert f"<td>{rule}</td>{numbers}" in inside
    assert "<mark>" in page


def test_the_verbs_answer_on_a_corpus(corpus: Artifact, run_cli: RunCli, tmp_path: Path) -> None:
    found = run_cli("curate", "audit", corpus.path, "--sample", "10", "--samples", "drawn.jsonl", "--json").json
    assert (found["drawn"], found["false"], found["failed"]) == (10, 0, [])
    assert len((tmp_path / "drawn.jsonl").read_bytes().splitlines()) == 10
    page = run_cli("curate", "report", corpus.path, "--json").json
    assert (tmp_path / page["page"]).read_text().startswith("<!doctype html>")
    victim = next(iter(kept(corpus).values())).id
    (tmp_path / "ids.txt").write_text(f"{victim}\n")
    gone = run_cli("curate", "remove", corpus.path, "--ids", "ids.txt", "--json").json
    assert (gone["taken_down"], gone["runs"], gone["datasets"]) == (1, [], [])
    assert "is no rule" in run_cli("curate", "undo", "dedup.magic", corpus.path, code=2).stderr
