"""Results of verbs on files are replayed, undone and shown as a corpus is."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
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
from headwater.curate.removals import AS_IT_IS
from headwater.curate.results import file_report
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


Verb = Callable[..., dict[str, Any]]


def curated(folder: Path, out: str = "out", **options: Any) -> dict[str, Any]:
    config = CurateConfig.model_validate({**AS_IT_IS, "dedup": {"minhash": False}, "canaries": {"documents": 0}})
    return curate_files([folder / "in.jsonl"], folder / out, config, **options)


def deduplicated(folder: Path, out: str = "out", **options: Any) -> dict[str, Any]:
    return dedup_files([folder / "in.jsonl"], folder / out, against=[folder / "other.jsonl"], **options)


def decontaminated(folder: Path, out: str = "out", **options: Any) -> dict[str, Any]:
    return decontaminate_files([folder / "in.jsonl"], folder / out, benchmarks=[folder / "other.jsonl"], **options)


VERBS = [curated, deduplicated, decontaminated]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_rows(tmp_path / "in.jsonl", [{"text": sentence(number % 3)} for number in range(6)])
    write_rows(tmp_path / "other.jsonl", [{"text": sentence(1)}])
    return tmp_path


@pytest.mark.parametrize(
    ("verb", "name"),
    [
        (curated, "in.jsonl"), (deduplicated, "in.jsonl"), (deduplicated, "other.jsonl"),
        (decontaminated, "in.jsonl"), (decontaminated, "other.jsonl"),
    ],
)  # fmt: skip
def test_a_result_whose_inputs_changed_is_neither_replayed_nor_undone(verb: Verb, name: str, folder: Path) -> None:
    verb(folder)
    path, before = folder / name, (folder / name).stat()
    path.write_bytes(path.read_bytes()[:-10] + b'another!"}\n'[-10:])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(InputError, match="others now"):
        audit(folder / "out")
    if verb is not decontaminated:  # whose one rule is never undone
        with pytest.raises(InputError, match="others now"):
            undo_files(folder / "out", "dedup.exact", folder / "again")
    assert not (folder / "again").exists()
    path.unlink()
    with pytest.raises(InputError, match="no longer there"):
        audit(folder / "out")


@pytest.mark.parametrize("verb", VERBS)
def test_the_same_call_again_changes_nothing_and_another_result_is_not_overwritten(verb: Verb, folder: Path) -> None:
    first = verb(folder)
    before = (folder / "out" / "kept.jsonl.zst").stat().st_mtime_ns
    assert verb(folder) == first
    assert (folder / "out" / "kept.jsonl.zst").stat().st_mtime_ns == before
    write_rows(folder / "in.jsonl", [{"text": sentence(number)} for number in range(3)])
    with pytest.raises(UserError, match="another result"):
        verb(folder)
    verb(folder, overwrite=True)
    verb(folder, "fresh")
    for name in ("kept.jsonl.zst", "removed.jsonl.zst", "report.json"):
        assert (folder / "out" / name).read_bytes() == (folder / "fresh" / name).read_bytes()


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("name", ["kept.jsonl.zst", "removed.jsonl.zst", "report.json"])
@pytest.mark.parametrize("damage", ["cut", "gone", "changed"])
def test_a_damaged_result_of_the_same_call_is_noticed(verb: Verb, name: str, damage: str, folder: Path) -> None:
    verb(folder)
    path = folder / "out" / name
    data = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(data[:-5] if damage == "cut" else data[:9] + b"\0" + data[10:])
    gone = (name, damage) == ("report.json", "gone")
    with pytest.raises(UserError, match="another result" if gone else f"{name} is") as caught:
        verb(folder)
    assert "--force" in caught.value.mend
    verb(folder, overwrite=True)
    assert path.read_bytes() == data


@pytest.mark.parametrize("verb", [deduplicated, decontaminated])
def test_a_run_killed_between_its_results_goes_on(verb: Verb, folder: Path) -> None:
    whole = verb(folder)
    (folder / "out" / "report.json").unlink()
    left = folder / "out" / ".tmp-dedup-killed"
    left.mkdir()
    (left / "owner").write_text("another fingerprint")
    with pytest.raises(UserError, match="another result"):
        verb(folder)
    (left / "owner").write_text(whole["fingerprint"])
    assert verb(folder) == whole
    assert not left.exists()


def test_a_report_that_nobody_can_read_is_named(folder: Path) -> None:
    deduplicated(folder)
    (folder / "out" / "report.json").write_text('{"verb": "dedup"')
    with pytest.raises(InputError, match=r"report\.json is damaged"):
        audit(folder / "out")


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


def test_a_list_of_removals_with_a_line_that_is_no_row_is_damaged(results: dict[str, Path], tmp_path: Path) -> None:
    for place, line in enumerate((b"", b"[1]", b'{"rule": "x"}', b'{"id": "half')):
        shutil.copytree(results["curated"], tmp_path / str(place))
        removed = tmp_path / str(place) / "removed.jsonl.zst"
        removed.write_bytes(removed.read_bytes() + zstandard.compress(line + b"\n"))
        with pytest.raises(InputError, match=r"this file is damaged \(line \d+ is no row\)"):
            audit(tmp_path / str(place))


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
    (cut,) = shape["cut"].values()
    assert cut["bytes"] == shape["in"]["bytes"] - shape["out"]["bytes"] > 0
    assert "units" not in shape["out"]
    for table in (shape["by_language"], shape["by_domain"]):
        assert sum(row["out"]["bytes"] for row in table.values()) == shape["out"]["bytes"]


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


@pytest.mark.parametrize("verb", [["audit"], ["report"], ["undo", "dedup.exact"]], ids=" ".join)
def test_a_result_that_is_not_there_is_said_to_be_missing(verb: list[str], tmp_path: Path) -> None:
    out = [] if verb == ["audit"] else ["--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, [*verb, str(tmp_path / "typo"), *out])
    assert isinstance(done.exception, InputError)
    assert "typo: no such file or folder" in str(done.exception)


def test_inputs_without_a_row_name_options_that_the_verb_has(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("\n")
    done = CliRunner().invoke(app, ["dedup", str(tmp_path / "in.jsonl"), "--out", str(tmp_path / "out")])
    assert isinstance(done.exception, InputError)
    assert done.exception.mend == "check the files and --text-field"


@pytest.mark.parametrize("name", ["empty", "hidden"])
def test_a_folder_without_a_file_is_named_and_no_setting_that_the_verb_lacks(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    if name == "hidden":
        write_rows(tmp_path / name / ".git" / "in.jsonl", [{"text": sentence(1)}])
    for verb in ("whole", "filter", "dedup", "mix"):
        error = CliRunner().invoke(app, [verb, str(tmp_path / name), "--out", str(tmp_path / "out")]).exception
        assert isinstance(error, InputError)
        assert (error.what, error.where) == ("no file to read in this folder", str(tmp_path / name))
        assert "collect" not in error.mend


@pytest.mark.parametrize("verb", ["dedup", "decontaminate", "mix"])
def test_a_file_without_rows_among_good_ones_is_counted_and_said(verb: str, folder: Path) -> None:
    (folder / "blank.jsonl").write_text("\n  \n")
    options = ["--benchmark", str(folder / "other.jsonl")] if verb == "decontaminate" else []
    inputs = [str(folder / name) for name in ("blank.jsonl", "in.jsonl")]
    done = CliRunner().invoke(app, [verb, *inputs, *options, "--out", str(folder / "out")])
    assert f"1 files hold no row: {folder / 'blank.jsonl'}" in done.output
    report = file_report(folder / "out")
    assert (report["empty_files"], report["rows"]["blank_lines"]) == ([str(folder / "blank.jsonl")], 2)


def test_what_lies_behind_a_link_is_read_and_a_link_to_nowhere_is_named(folder: Path) -> None:
    (folder / "elsewhere").mkdir()
    shutil.copy(folder / "in.jsonl", folder / "elsewhere" / "more.jsonl")
    (folder / "linked").mkdir()
    (folder / "linked" / "part").symlink_to(folder / "elsewhere")
    assert dedup_files([folder / "linked"], folder / "out")["rows"]["documents"] == 6
    (folder / "linked" / "lost.jsonl").symlink_to(folder / "nowhere.jsonl")
    with pytest.raises(InputError, match=r"lost\.jsonl"):
        dedup_files([folder / "linked"], folder / "out")


def test_undo_writes_over_another_result_when_it_is_told_to(folder: Path) -> None:
    deduplicated(folder)
    dedup_files([folder / "other.jsonl"], folder / "again")
    call = ["undo", "minhash", str(folder / "out"), "--out", str(folder / "again")]
    assert "another result" in str(CliRunner().invoke(app, call).exception)
    assert CliRunner().invoke(app, [*call, "--force"]).exit_code == 0
    assert file_report(folder / "again")["settings"]["methods"] == ["exact"]


def test_a_rule_that_removed_nothing_is_named_by_audit_and_not_passed_over(folder: Path) -> None:
    deduplicated(folder)
    with pytest.raises(UserError, match=r"nothing was removed by 'exact'") as caught:
        audit(folder / "out", rules=["dedup.exact", "exact"])
    assert caught.value.mend == "removals are by dedup.exact"


def test_pages_and_samples_are_written_into_folders_that_are_not_there_yet(folder: Path) -> None:
    deduplicated(folder)
    page, samples = folder / "new" / "page.html", folder / "newer" / "still" / "samples.jsonl"
    assert CliRunner().invoke(app, ["report", str(folder / "out"), "--out", str(page)]).exit_code == 0
    assert CliRunner().invoke(app, ["audit", str(folder / "out"), "--samples", str(samples)]).exit_code == 0
    assert "dedup.exact" in page.read_text()
    assert samples.read_text().count("dedup.exact") == 4


def test_a_rule_that_is_none_is_said_before_anything_is_written(folder: Path) -> None:
    done = CliRunner().invoke(
        app, ["filter", str(folder / "in.jsonl"), "--rules", "nosuch", "--out", str(folder / "o")]
    )
    assert isinstance(done.exception, UserError)
    assert "'nosuch' is neither a quality rule" in done.exception.what
    assert not (folder / "o").exists()


def test_a_page_has_no_column_or_table_without_a_figure_and_names_rules_as_audit_does(folder: Path) -> None:
    with (folder / "in.jsonl").open("ab") as file:
        file.write(b"{broken\n")
    for verb, rule, tables in ((deduplicated, "dedup.exact", 3), (decontaminated, "decontaminate.question", 1)):
        verb(folder, verb.__name__)
        page = folder / f"{verb.__name__}.html"
        CliRunner().invoke(app, ["report", str(folder / verb.__name__), "--out", str(page)])
        text = page.read_text()
        assert (text.count("<table>"), text.count(f"<td>{rule}</td>")) == (tables, 1)
        assert ("<th>units</th>" in text) == (verb is deduplicated)
        assert "1 rows that could not be used are not among them" in text
