"""`headwater curate clean` and `filter` on files."""

from __future__ import annotations

import json
import time
from pathlib import Path

import zstandard

from headwater.curate.mojibake import repair
from tests.conftest import RunCli
from tests.curate.helpers import read_zst, write_rows
from tests.curate.quality.test_rules import CHINESE, ENGLISH


def test_clean_puts_texts_right_and_counts_what_it_changed(tmp_path: Path, run_cli: RunCli) -> None:
    rows = [
        {
            "id": "a",
            "text": "<p>今天天气很好,我们去公园散步,你来不来?</p>\n返回顶部\n电话13812345678。",
            "more": [1, None],
        },
        {"id": "b", "text": "Donâ€™t write to jane@company.org, she is away for the whole month."},
        {"id": "c", "text": "short"},
        {"id": "d", "text": ENGLISH},
    ]
    write_rows(tmp_path / "in.jsonl", rows)
    report = run_cli("curate", "clean", "in.jsonl", "--out", "out", "--json").json
    kept = read_zst(tmp_path / "out" / "kept.jsonl.zst")
    assert [row["id"] for row in kept] == ["a", "b", "d"]
    assert kept[0] == {**rows[0], "text": "今天天气很好，我们去公园散步，你来不来？\n\n电话[PHONE]。"}
    assert kept[1]["text"] == "Don’t write to [EMAIL], she is away for the whole month."
    assert repair(rows[1]["text"])[1] == 1
    edits = {kind: (counts["documents"], counts["number"]) for kind, counts in report["edits"].items()}
    assert edits == {"boilerplate": (1, 1), "email": (1, 1), "mojibake": (1, 1), "phone": (1, 1)}
    removed = read_zst(tmp_path / "out" / "removed.jsonl.zst")
    assert [(row["id"], row["rule"]) for row in removed] == [("c", "clean.too-short")]
    assert json.loads((tmp_path / "out" / "report.json").read_bytes())["edits"] == report["edits"]
    run_cli("curate", "clean", "in.jsonl", "--out", "bare", "--pii", "none", "--min-characters", "0", "--json")
    assert "jane@company.org" in read_zst(tmp_path / "bare" / "kept.jsonl.zst")[1]["text"]


def test_filter_keeps_rows_byte_for_byte_and_says_why_the_others_went(tmp_path: Path, run_cli: RunCli) -> None:
    good = [
        b'{"text": "' + ENGLISH.encode() + b'",   "id":"a", "n": 1.50}',
        json.dumps({"id": "b", "text": f"<b>{CHINESE}</b>  \r\n"}, ensure_ascii=False).encode(),
    ]
    spam = json.dumps({"id": "c", "text": "buy now " * 40}).encode()
    german = json.dumps(
        {"id": "d", "text": "Heute ist das Wetter sehr schön, deshalb gehen wir im Park spazieren. " * 2}
    ).encode()
    (tmp_path / "in.jsonl").write_bytes(b"\n".join([*good, spam, german]) + b"\n")
    begin = time.monotonic()
    run_cli("curate", "filter", "in.jsonl", "--accept", "zh,en", "--out", "out", "--json")
    assert time.monotonic() - begin < 60
    with zstandard.open(tmp_path / "out" / "kept.jsonl.zst", "rb") as file:
        assert file.read().splitlines() == good
    removed = {row["id"]: row for row in read_zst(tmp_path / "out" / "removed.jsonl.zst")}
    assert {key: row["rule"] for key, row in removed.items()} == {
        "c": "gopher.stop-words",
        "d": "language.not-accepted",
    }
    assert removed["c"]["version"] == 1
    assert removed["c"]["score"] == 0
    assert "under 2 (latin)" in removed["c"]["detail"]
    assert removed["c"]["kept_id"] is None
    assert removed["c"]["spans"] == []


def test_rules_are_listed_chosen_and_given_limits(tmp_path: Path, run_cli: RunCli) -> None:
    listed = {rule["rule"]: rule for rule in run_cli("curate", "rules", "--json").json["rules"]}
    assert listed["gopher.length"]["limits"]["latin"] == [10, None]
    assert listed["gopher.length"]["says"].startswith("Length in words")
    write_rows(tmp_path / "in.jsonl", [{"id": 1, "text": ENGLISH}, {"id": 2, "text": "buy now " * 40}])
    run_cli("curate", "filter", "in.jsonl", "--rules", "gopher", "--without", "gopher.stop-words", "--out", "a",
            "--set", "curate.quality.limits={gopher.length: {latin: [500, null]}}", "--json")  # fmt: skip
    removed = read_zst(tmp_path / "a" / "removed.jsonl.zst")
    assert [row["rule"] for row in removed] == ["gopher.length", "gopher.length"]
    result = run_cli("curate", "filter", "in.jsonl", "--rules", "gofer", "--out", "b", code=2)
    assert "gofer" in result.stderr
    assert "families" in result.stderr
    result = run_cli("curate", "clean", "in.jsonl", "--pii", "passport", "--out", "b", code=2)
    assert "passport" in result.stderr
