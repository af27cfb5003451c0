"""`headwater curate mix` on files: quotas by domain and language, caps, repeats; and a corpus written for others."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import zstandard

from headwater.core.documents import Document, DocumentWriter, document_id
from headwater.core.errors import InputError, RecipeError, UserError
from headwater.core.units import count_units
from headwater.curate.export import export_corpus
from headwater.pipeline.mix_files import MixOptions, mix_files
from tests.conftest import RunCli


def rows_of(path: Path) -> list[dict[str, str]]:
    return [
        json.loads(line) for line in zstandard.ZstdDecompressor().stream_reader(path.open("rb")).read().splitlines()
    ]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """1,000 units of web and 200 of books, in each of zh and en."""
    lines = []
    for domain, count in (("web", 100), ("books", 20)):
        for number in range(count):
            lines.append({"id": f"{domain}-en-{number}", "domain": domain, "lang": "en", "text": "water " * 10})
            lines.append({"id": f"{domain}-zh-{number}", "domain": domain, "lang": "zh", "text": "水" * 10})
    path = tmp_path / "in.jsonl"
    path.write_text("\n".join(json.dumps(line, ensure_ascii=False) for line in lines) + "\nnot json\n", "utf-8")
    return path


def units(rows: list[dict[str, str]], key: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for row in rows:
        found[row[key]] += count_units(row["text"])
    return found


def test_quotas_of_domains_are_met_and_rows_stay_as_they_are(corpus: Path, tmp_path: Path) -> None:
    report = mix_files([corpus], tmp_path / "out", MixOptions(weights={"web": 0.75, "books": 0.25}))
    kept, removed = rows_of(tmp_path / "out" / "kept.jsonl.zst"), rows_of(tmp_path / "out" / "removed.jsonl.zst")
    assert units(kept, "domain") == {"web": 1200, "books": 400}, "all books, and three times as much of the web"
    given = [json.loads(line) for line in corpus.read_text("utf-8").splitlines()[:-1]]
    assert [row["id"] for row in kept] == [row["id"] for row in given if row in kept], "the input's order"
    assert {row["id"] for row in kept} | {row["id"] for row in removed} == {row["id"] for row in given}
    assert {(row["rule"], row["version"]) for row in removed} == {("mix.quota", 1)}
    assert (report["rows"]["unusable"], report["taken"]) == (1, 1600)
    assert (tmp_path / "out" / "quarantine.jsonl").read_text().count("bad-json") == 1


def test_repeats_stay_below_their_cap_and_what_cannot_be_had_is_refused(corpus: Path, tmp_path: Path) -> None:
    options = MixOptions(weights={"web": 0.5, "books": 0.5}, total=2000, max_repeats={"books": 2.5})
    mix_files([corpus], tmp_path / "out", options)
    kept = rows_of(tmp_path / "out" / "kept.jsonl.zst")
    assert units(kept, "domain") == {"web": 1000, "books": 1000}
    assert max(Counter(row["id"] for row in kept if row["domain"] == "books").values()) == 3
    short = MixOptions(weights={"web": 0.5, "books": 0.5}, total=2000, max_repeats={"books": 2})
    with pytest.raises(RecipeError, match=r"'books/en' would give 500 tokens, but has 200 and may be read 2 times"):
        mix_files([corpus], tmp_path / "no", short)
    assert not (tmp_path / "no").exists()
    fill = MixOptions(**{**vars(short), "fill": True})
    mix_files([corpus], tmp_path / "filled", fill)
    assert units(rows_of(tmp_path / "filled" / "kept.jsonl.zst"), "domain") == {"web": 1200, "books": 800}


def test_languages_have_their_shares_beside_the_domains(corpus: Path, tmp_path: Path) -> None:
    options = MixOptions(weights={"web": 0.8, "books": 0.2}, languages={"zh": 0.75, "en": 0.25}, total=1000)
    mix_files([corpus], tmp_path / "out", options)
    kept = rows_of(tmp_path / "out" / "kept.jsonl.zst")
    assert units(kept, "lang") == {"zh": 750, "en": 250}
    assert units(kept, "domain") == {"web": 800, "books": 200}


def test_the_same_rows_are_chosen_whatever_the_order_of_the_input(corpus: Path, tmp_path: Path) -> None:
    options = MixOptions(weights={"web": 0.5, "books": 0.5})
    mix_files([corpus], tmp_path / "one", options)
    lines = corpus.read_text("utf-8").splitlines()
    (tmp_path / "reversed.jsonl").write_text("\n".join(reversed(lines)), "utf-8")
    mix_files([tmp_path / "reversed.jsonl"], tmp_path / "two", options)
    one, two = (rows_of(tmp_path / name / "kept.jsonl.zst") for name in ("one", "two"))
    assert one == two[::-1]


def test_the_verb_says_its_plan_first(corpus: Path, tmp_path: Path, run_cli: RunCli) -> None:
    said = run_cli("curate", "mix", corpus, "--weights", "web=0.75,books=0.25", "--plan")
    assert "books/en: 12.5%, 200 units, 1.00 passes" in said.stderr
    assert not (tmp_path / "mixed").exists()
    result = run_cli("curate", "mix", corpus, "--out", "out", "--weights", "web=0.75,books=0.25", "--json").json
    assert result["taken"] == 1600
    failed = run_cli("curate", "mix", corpus, "--out", "x", "--weights", "web=0.75,papers=1", "--json", code=2).json
    assert "no domain 'papers'" in failed["error"]["what"]


def test_a_weight_that_is_no_number_is_the_users_mistake() -> None:
    from headwater.cli.curate_collect import _shares

    with pytest.raises(UserError, match="'web' is no NAME=NUMBER"):
        _shares("web", "--weights")
    for endless in ("web=nan", "web=inf"):
        with pytest.raises(UserError, match=f"'{endless}' is no NAME=NUMBER"):
            _shares(f"books=1,{endless}", "--weights")


@pytest.mark.parametrize("weight", [float("nan"), float("inf")])
def test_weights_that_have_no_sum_are_refused(corpus: Path, tmp_path: Path, weight: float) -> None:
    with pytest.raises(RecipeError, match="cannot mix with the weights"):
        mix_files([corpus], tmp_path / "out", MixOptions(weights={"web": weight, "books": 1.0}))


@pytest.fixture
def curated(tmp_path: Path) -> Callable[[], Path]:
    def make() -> Path:
        for split in ("train", "validation"):
            (tmp_path / "corpus" / split).mkdir(parents=True)
            with DocumentWriter(tmp_path / "corpus" / split / "web-00000.parquet") as writer:
                for number in range(5):
                    identity = document_id("web", split, number)
                    writer.add(Document(identity, f"第{number}篇", "web", "zh", "web", meta={"n": number}))
        return tmp_path / "corpus"

    return make


def test_a_corpus_goes_out_as_json_lines_and_parquet(curated: Callable[[], Path], tmp_path: Path) -> None:
    folder = curated()
    report = export_corpus(folder, tmp_path / "jsonl", "jsonl")
    assert report["documents"] == 10
    rows = rows_of(tmp_path / "jsonl" / "train" / "web-00000.jsonl.zst")
    assert [(row["text"], row["meta"]) for row in rows] == [(f"第{n}篇", {"n": n}) for n in range(5)]
    export_corpus(folder, tmp_path / "parquet", "parquet", splits=["train"], domains=["web"])
    table = pq.read_table(tmp_path / "parquet" / "train" / "web-00000.parquet")
    assert table.column("text").to_pylist() == [row["text"] for row in rows]
    assert not (tmp_path / "parquet" / "validation").exists()
    with pytest.raises(InputError, match="not empty"):
        export_corpus(folder, tmp_path / "jsonl", "jsonl")
    with pytest.raises(InputError, match="no test split"):
        export_corpus(folder, tmp_path / "x", "jsonl", splits=["test"])
