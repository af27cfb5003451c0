"""Results of verbs on files are replayed, undone and shown as a corpus is."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headwater.cli.curate_verbs import app
from headwater.core.errors import InputError, UserError
from headwater.curate.audit import audit
from headwater.curate.config import CurateConfig
from headwater.curate.dedup.decontaminate import decontaminate_files
from headwater.curate.dedup.files import dedup_files
from headwater.curate.dedup.settings import DedupSettings
from headwater.curate.files import curate_files
from headwater.curate.files_again import curation_shape, undo_files
from headwater.curate.removals import file_report
from tests.curate.helpers import read_zst, sentence, write_rows
from tests.curate.test_site_lines import body

QUESTION = (
    "If a train leaves the station at nine and a second one at ten, when does the faster one pass the slower one?"
)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Short rows, duplicates, near-duplicates in both scripts, a question; the same row id twice."""
    folder = tmp_path_factory.mktemp("inputs")
    long = [body(lang, number) * 2 for number in range(6) for lang in ("en", "zh")]
    rows = [{"id": "same", "text": text} for text in long]
    rows += [{"text": text.replace("was", "is", 1).replace("。", "，", 1)} for text in long]
    rows += [{"id": number, "text": sentence(number)} for number in range(4)]
    rows += [{"text": sentence(0)}, {"text": "short"}, {"id": "q", "text": f"{body('en', 50)} {QUESTION}"}]
    write_rows(folder / "in.jsonl", rows)
    write_rows(folder / "benchmark.jsonl", [{"question": QUESTION}])
    return folder


@pytest.fixture(scope="module")
def results(inputs: Path) -> dict[str, Path]:
    """Folders of three verbs, made in another folder than the inputs lie in."""
    files = [inputs / "in.jsonl"]
    curate_files(files, inputs / "curated", CurateConfig(quality={"rules": []}, language={"accepted": []}))
    dedup_files(files, inputs / "deduplicated", settings=DedupSettings(methods=("exact", "minhash", "ngram")))
    decontaminate_files(files, inputs / "decontaminated", benchmarks=[inputs / "benchmark.jsonl"])
    return {name: inputs / name for name in ("curated", "deduplicated", "decontaminated")}


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("curated", {"clean.too-short", "dedup.exact", "dedup.minhash"}),
        ("deduplicated", {"dedup.exact", "dedup.minhash"}),
        ("decontaminated", {"decontaminate.question"}),
    ],
)
def test_every_removal_from_files_holds_when_it_is_replayed(
    name: str, rules: set[str], results: dict[str, Path]
) -> None:
    found = audit(results[name], sample=1000)
    assert set(found["by_rule"]) >= rules
    assert (found["false"], found["not_replayed"]) == (0, 0)
    assert found["replayed"] == found["removals"] == len(read_zst(results[name] / "removed.jsonl.zst"))
    assert found["wilson_95"][1] < 0.85
    assert all(one["text"] for one in found["samples"])


def test_a_false_removal_is_found(results: dict[str, Path], tmp_path: Path) -> None:
    import zstandard

    from headwater.core.jsonl import canonical_json

    forged = tmp_path / "forged"
    forged.mkdir()
    for path in results["deduplicated"].iterdir():
        if path.is_file():
            (forged / path.name).write_bytes(path.read_bytes())
    rows = read_zst(forged / "removed.jsonl.zst")
    rows[0] |= {"kept_line": 3, "kept_id": "same"}
    data = b"".join(canonical_json(row) + b"\n" for row in rows)
    (forged / "removed.jsonl.zst").write_bytes(zstandard.compress(data))
    assert audit(forged, sample=1000)["false"] == 1


def test_a_rule_undone_brings_back_what_it_took(results: dict[str, Path], tmp_path: Path) -> None:
    before = read_zst(results["curated"] / "kept.jsonl.zst")
    undo_files(results["curated"], "clean.too-short", tmp_path / "a")
    after = read_zst(tmp_path / "a" / "kept.jsonl.zst")
    assert [row for row in after if row["text"] != "short"] == before
    assert len(after) == len(before) + 1
    undo_files(results["deduplicated"], "minhash", tmp_path / "b")
    assert {row["rule"] for row in read_zst(tmp_path / "b" / "removed.jsonl.zst")} <= {
        "exact", "ngram-passage", "ngram-document", "ngram-repeat",
    }  # fmt: skip
    with pytest.raises(UserError, match="was not asked"):
        undo_files(results["deduplicated"], "simhash", tmp_path / "c")
    with pytest.raises(UserError, match="one rule only"):
        undo_files(results["decontaminated"], "decontaminate", tmp_path / "c")
    with pytest.raises(UserError, match="would be lost"):
        undo_files(results["curated"], "clean.too-short", results["curated"])


def test_inputs_that_changed_are_not_replayed_as_if_they_had_not(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", [{"text": sentence(number % 3)} for number in range(6)])
    curate_files([tmp_path / "in.jsonl"], tmp_path / "out")
    dedup_files([tmp_path / "in.jsonl"], tmp_path / "unique")
    write_rows(tmp_path / "in.jsonl", [{"text": sentence(10 + number)} for number in range(6)])
    with pytest.raises(InputError, match="others now"):
        audit(tmp_path / "out")
    with pytest.raises(InputError, match="others now"):
        undo_files(tmp_path / "out", "dedup.exact", tmp_path / "again")
    assert not (tmp_path / "again").exists()
    found = audit(tmp_path / "unique")
    assert (found["replayed"], found["not_replayed"]) == (0, 3)


@pytest.mark.parametrize("name", ["curated", "deduplicated", "decontaminated"])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_list_of_removals_that_was_cut_off_is_not_taken_for_a_shorter_one(
    results: dict[str, Path], tmp_path: Path, name: str, share: float
) -> None:
    shutil.copytree(results[name], tmp_path / name)
    removed = tmp_path / name / "removed.jsonl.zst"
    removed.write_bytes(removed.read_bytes()[: int(removed.stat().st_size * share)])
    with pytest.raises(InputError, match="damaged"):
        audit(tmp_path / name)


def test_the_verbs_answer_on_results_of_files(results: dict[str, Path], tmp_path: Path) -> None:
    for name, folder in results.items():
        page = tmp_path / f"{name}.html"
        done = CliRunner().invoke(app, ["report", str(folder), "--out", str(page), "--json"])
        assert done.exit_code == 0, done.output
        assert "<h2>Removed, to read</h2>" in page.read_text()
    done = CliRunner().invoke(app, ["audit", str(results["curated"]), "--sample", "3"])
    assert "3 replayed, 0 do not hold" in done.output
    done = CliRunner().invoke(
        app, ["undo", "dedup.exact", str(results["curated"]), "--out", str(tmp_path / "undone"), "--quiet"]
    )
    assert "documents restored" in done.output


def test_units_are_left_out_where_passages_were_cut_and_not_counted(tmp_path: Path) -> None:
    shared = " ".join(f"word{number}" for number in range(120))
    rows = [{"text": f"{' '.join(f'{name}{number}' for number in range(150))} {shared}"} for name in ("one", "two")]
    write_rows(tmp_path / "in.jsonl", rows)
    dedup_files([tmp_path / "in.jsonl"], tmp_path / "out", settings=DedupSettings(methods=("ngram",)))
    shape = curation_shape(file_report(tmp_path / "out"))
    assert shape["cut"]["ngram"]["bytes"] == shape["in"]["bytes"] - shape["out"]["bytes"] > 0
    assert "units" not in shape["out"]


def test_a_result_that_lost_nothing_names_no_rule(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", [{"text": sentence(number)} for number in range(3)])
    dedup_files([tmp_path / "in.jsonl"], tmp_path / "out", settings=DedupSettings(methods=("exact",)))
    assert curation_shape(file_report(tmp_path / "out"))["dropped"] == {}


@pytest.mark.parametrize("verb", [["whole"], ["filter"], ["dedup"], ["mix"]], ids=str)
def test_a_result_inside_its_input_is_refused(verb: list[str], tmp_path: Path) -> None:
    write_rows(tmp_path / "in" / "in.jsonl", [{"text": sentence(1)}])
    done = CliRunner().invoke(app, [*verb, str(tmp_path / "in"), "--out", str(tmp_path / "in" / "out")])
    assert isinstance(done.exception, UserError)
    assert "inside the input" in str(done.exception)
    assert not (tmp_path / "in" / "out").exists()


def test_undo_of_a_folder_that_is_no_result_says_so(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["undo", "dedup.exact", str(tmp_path), "--out", str(tmp_path / "out")])
    assert isinstance(done.exception, InputError)
    assert "neither a corpus nor what a verb on files wrote" in str(done.exception)


def test_inputs_without_a_row_name_options_that_the_verb_has(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("\n")
    done = CliRunner().invoke(app, ["dedup", str(tmp_path / "in.jsonl"), "--out", str(tmp_path / "out")])
    assert isinstance(done.exception, InputError)
    assert done.exception.mend == "check the files and --text-field"
