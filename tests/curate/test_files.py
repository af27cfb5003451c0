import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from headwater.core.errors import InputError, UserError
from headwater.curate import FileOptions, clean_document, curate_files
from headwater.curate.config import CurateConfig
from tests.conftest import RunCli
from tests.curate.helpers import read_zst, sentence, write_rows

CHINESE_HTML = "<p>今天天气很好,我们一起去公园散步,看到了许多花.</p>"
CLEANED = "今天天气很好，我们一起去公园散步，看到了许多花。"


def test_kept_rows_are_the_input_rows_byte_for_byte(tmp_path: Path) -> None:
    odd = '"n": 1.50, "big": 123456789012345678901234567890, "nested": {"b": [1, null]}'
    lines = [f'{{"text": "{sentence(0)}", "id": "a", {odd}}}', f'{{ "id":7 ,"text":"{sentence(1)}" }}']
    (tmp_path / "in.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    curate_files([tmp_path / "in.jsonl"], tmp_path / "out")
    with zstandard.open(tmp_path / "out" / "kept.jsonl.zst", "rb") as file:
        assert file.read().decode().splitlines() == lines


def test_a_row_without_id_gets_one_and_a_changed_text_lies_beside_its_own(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", [{"text": CHINESE_HTML, "url": "u"}, {"text": "short", "id": 5}])
    report = curate_files([tmp_path / "in.jsonl"], tmp_path / "out")
    (kept,) = read_zst(tmp_path / "out" / "kept.jsonl.zst")
    assert kept == {"id": kept["id"], "text": CHINESE_HTML, "url": "u", "clean_text": CLEANED}
    assert len(kept["id"]) == 32
    (gone,) = read_zst(tmp_path / "out" / "removed.jsonl.zst")
    assert (gone["id"], gone["rule"], gone["version"], gone["score"], gone["kept_id"]) == (
        5,
        "clean.too-short",
        1,
        5.0,
        None,
    )
    assert report == json.loads((tmp_path / "out" / "report.json").read_bytes())
    assert report["out"]["documents"] == 1


def test_rewriting_puts_the_cleaned_text_into_the_text_field(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", [{"body": CHINESE_HTML, "key": "k1", "x": 1}])
    options = FileOptions(text_field="body", id_field="key", rewrite_text=True)
    curate_files([tmp_path / "in.jsonl"], tmp_path / "out", options=options)
    assert read_zst(tmp_path / "out" / "kept.jsonl.zst") == [{"id": "k1", "body": CLEANED, "key": "k1", "x": 1}]


def test_duplicates_name_the_kept_row_by_its_own_id(tmp_path: Path) -> None:
    write_rows(tmp_path / "a.jsonl", [{"id": "web", "text": sentence(1), "domain": "web"}])
    write_rows(tmp_path / "b.jsonl", [{"id": "book", "text": f"<p>{sentence(1)}</p>", "domain": "books"}])
    for inputs in ([tmp_path / "a.jsonl", tmp_path / "b.jsonl"], [tmp_path / "b.jsonl", tmp_path / "a.jsonl"]):
        curate_files(inputs, tmp_path / "out", overwrite=True)
        (gone,) = read_zst(tmp_path / "out" / "removed.jsonl.zst")
        assert (gone["id"], gone["kept_id"], gone["rule"]) == ("web", "book", "dedup.exact")


def test_every_kind_of_file_can_be_mixed(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    write_rows(folder / "rows.jsonl", [{"text": sentence(0)}])
    pq.write_table(pa.table({"text": [sentence(1)], "n": [3]}), folder / "rows.parquet")
    (folder / "note.txt").write_text(sentence(2), encoding="utf-8")
    (folder / "page.html").write_text(
        f"<html><title>T</title><body><p>{sentence(3)}</p></body></html>", encoding="utf-8"
    )
    report = curate_files([folder], tmp_path / "out")
    kept = {row.get("path", f"row {row.get('n')}"): row for row in read_zst(tmp_path / "out" / "kept.jsonl.zst")}
    assert set(kept) == {"in/note.txt", "in/page.html", "row None", "row 3"}
    assert kept["in/page.html"]["title"] == "T"
    assert kept["in/page.html"]["text"] == sentence(3)
    assert report["out"]["documents"] == 4


def test_nothing_but_bad_input_gives_empty_results_and_a_full_quarantine(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_bytes(b"\xff\xfe\n{\n[]\n")
    (tmp_path / "empty.jsonl").write_bytes(b"")
    report = curate_files([tmp_path / "bad.jsonl", tmp_path / "empty.jsonl"], tmp_path / "out")
    assert read_zst(tmp_path / "out" / "kept.jsonl.zst") == []
    rows = [json.loads(line) for line in (tmp_path / "out" / "quarantine.jsonl").read_text().splitlines()]
    assert [row["reason"] for row in rows] == ["bad-utf8", "bad-json", "not-an-object", "empty-file"]
    assert report["collected"]["quarantined"] == 3


def test_the_same_call_again_does_nothing_and_another_result_is_not_overwritten(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", [{"text": sentence(number)} for number in range(4)])
    first = curate_files([tmp_path / "in.jsonl"], tmp_path / "out")
    before = (tmp_path / "out" / "kept.jsonl.zst").stat().st_mtime_ns
    assert curate_files([tmp_path / "in.jsonl"], tmp_path / "out") == first
    assert (tmp_path / "out" / "kept.jsonl.zst").stat().st_mtime_ns == before
    config = CurateConfig(language={"accepted": ["zh"]})
    with pytest.raises(UserError, match="another result"):
        curate_files([tmp_path / "in.jsonl"], tmp_path / "out", config)
    assert curate_files([tmp_path / "in.jsonl"], tmp_path / "out", config, overwrite=True)["out"]["documents"] == 2
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "kept.jsonl.zst",
        "quarantine.jsonl",
        "removed.jsonl.zst",
        "report.json",
    ]


def test_a_killed_run_ends_with_the_same_files(tmp_path: Path, killer: Any) -> None:
    write_rows(tmp_path / "in.jsonl", [{"text": f"<p>{sentence(number % 3000)}</p>"} for number in range(4000)])
    code = "import sys; from pathlib import Path; from headwater.curate import curate_files; "
    code += "curate_files([Path(sys.argv[1])], Path(sys.argv[2]))"
    command = [sys.executable, "-c", code, tmp_path / "in.jsonl", tmp_path / "killed"]
    killer.kill_until_done(command, kills=3, shortest=0.3, longest=2.0)
    curate_files([tmp_path / "in.jsonl"], tmp_path / "whole")
    for name in ("kept.jsonl.zst", "removed.jsonl.zst", "quarantine.jsonl", "report.json"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert len(list((tmp_path / "killed").iterdir())) == 4


def test_a_run_stopped_between_its_results_goes_on(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", [{"text": sentence(number)} for number in range(4)])
    report = curate_files([tmp_path / "in.jsonl"], tmp_path / "out")
    (tmp_path / "out" / "report.json").unlink()
    with pytest.raises(UserError, match="another result"):
        curate_files([tmp_path / "in.jsonl"], tmp_path / "out")
    (tmp_path / "out" / ".work" / "curate-files" / f"{report['fingerprint']}.partial").mkdir(parents=True)
    assert curate_files([tmp_path / "in.jsonl"], tmp_path / "out") == report


def test_missing_inputs_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        curate_files([tmp_path / "nowhere.jsonl"], tmp_path / "out")
    with pytest.raises(InputError, match="no input files"):
        curate_files([], tmp_path / "out")


def test_ten_documents_are_answered_in_under_five_seconds(tmp_path: Path) -> None:
    write_rows(tmp_path / "in.jsonl", [{"text": sentence(number)} for number in range(10)])
    code = "import sys; from pathlib import Path; from headwater.curate import curate_files; "
    code += "curate_files([Path(sys.argv[1])], Path(sys.argv[2])); assert 'torch' not in sys.modules"
    start = os.times()
    subprocess.run([sys.executable, "-c", code, tmp_path / "in.jsonl", tmp_path / "out"], check=True)
    end = os.times()
    assert end.children_user - start.children_user + end.children_system - start.children_system < 5
    assert len(read_zst(tmp_path / "out" / "kept.jsonl.zst")) == 10


def test_cleaning_real_text_is_fast_enough(shared_data: Path) -> None:
    rows = read_zst(shared_data / "corpora" / "web.jsonl.zst")[:800]
    clean_document(rows[0]["text"])  # loads the language model
    start = time.process_time()
    for row in rows:
        clean_document(row["text"], lang=row["lang"], domain=row["domain"])
    size = sum(len(row["text"].encode()) for row in rows) / 1e6
    assert size / (time.process_time() - start) > 3  # MB per CPU-second; 10 measured on a quiet core


@pytest.mark.parametrize("verb", [[], ["dedup"]], ids=["whole", "dedup"])
def test_inputs_without_any_document_are_a_failure_in_words(verb: list[str], run_cli: RunCli, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(b'\n{"body": "no text"}\n')
    done = run_cli("curate", *verb, "in.jsonl", "--out", "out", "--json", code=2)
    assert "there is no document in the inputs" in done.json["error"]["what"]
    assert b"missing-field" in (tmp_path / "out" / "quarantine.jsonl").read_bytes()
