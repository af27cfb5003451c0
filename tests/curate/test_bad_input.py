"""Bad input of every kind: nothing crashes, nothing good is lost, everything is counted.

Each case writes files that hold `GOOD` documents and something bad. The whole curation runs over them, and must keep
the good, name the bad with its reason, and account for every record.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import resource
import subprocess
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from headwater.core.errors import HeadwaterError
from headwater.curate.config import CurateConfig
from headwater.curate.files import FileOptions, curate_files
from tests.conftest import REPOSITORY
from tests.curate.helpers import read_zst

GOOD = [
    "The river rose in the night, and by the morning the lower fields were under water. We carried what we could up "
    "the stairs of the house, and nobody in the village was hurt by the flood of that year.",
    "夜里河水涨了起来，到了早上，低处的田地已经全在水下了。我们把能搬的东西都搬到楼上，好在村里没有人受伤。",
    "My grandmother kept her letters in a box under the bed, and when she was old she read them to us in the winter, "
    "one each evening, with the names of people that nobody else could remember.",
    "祖母把信都收在床底下的一只木箱里，她老了以后，每到冬天的晚上就念一封给我们听，信里的人名，除了她谁也不记得了。",
]
"""Documents that stay; none is like another."""

ROWS = [json.dumps({"id": f"good-{n}", "text": text}, ensure_ascii=False).encode() for n, text in enumerate(GOOD)]
FIRST, LAST = ROWS[:2], ROWS[2:]


def lines(*rows: bytes) -> bytes:
    return b"\n".join(rows) + b"\n"


def around(*rows: bytes) -> dict[str, bytes]:
    """Bad rows between good ones."""
    return {"in.jsonl": lines(*FIRST, *rows, *LAST)}


def row(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def warc(*pages: bytes) -> bytes:
    records = []
    for number, page in enumerate(pages):
        body = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n\r\n" + page
        head = (
            f"WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: http://a.example/{number}\r\n"
            f"WARC-Record-ID: <urn:uuid:00000000-0000-0000-0000-{number:012d}>\r\nWARC-Date: 2024-01-01T00:00:00Z\r\n"
            f"Content-Type: application/http;msgtype=response\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        records.append(head.encode() + body + b"\r\n\r\n")
    return b"".join(records)


def page(text: str) -> bytes:
    return f"<html><body><article><p>{text}</p></article></body></html>".encode()


def parquet(rows: list[dict[str, Any]]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    return bytes(sink.getvalue().to_pybytes())


GOOD_PARQUET = parquet([{"id": f"good-{n}", "text": text} for n, text in enumerate(GOOD)])
GOOD_WARC = warc(*(page(text) for text in GOOD))


@dataclass(frozen=True)
class Case:
    """Files; how many of the good documents stay; reasons in the quarantine; rules in what was removed."""

    files: dict[str, bytes]
    kept: int = 4
    reasons: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    more: int = 0  # documents kept besides the good


CASES: dict[str, Case] = {
    "bad bytes in the middle of a file": Case(around(b'{"id": 1, "text": "caf\xe9 \xff\xfe"}'), reasons=("bad-utf8",)),
    "bytes that are nothing": Case(around(bytes(range(128, 256))), reasons=("bad-utf8",)),
    "a line cut in half": Case(around(b'{"id": 1, "text": "The riv'), reasons=("bad-json",)),
    "a list, a number, a text, null": Case(around(b"[1]", b"12", b'"x"', b"null"), reasons=("not-an-object",)),
    "no text field": Case(around(row(id=1, body="x")), reasons=("missing-field",)),
    "text is null": Case(around(row(id=1, text=None)), reasons=("wrong-type",)),
    "text is a number, a list, an object": Case(
        around(row(text=3), row(text=["a"]), row(text={"a": 1})), reasons=("wrong-type",)
    ),
    "NaN and Infinity": Case(around(b'{"id": NaN, "text": Infinity}'), reasons=("wrong-type",)),
    "NaN beside a good text": Case(
        {"in.jsonl": lines(*FIRST, LAST[0], LAST[1][:-1] + b', "score": NaN, "other": -Infinity}')}
    ),
    "huge numbers and deep nesting": Case(
        around(b'{"text": ' + b"[" * 5000 + b"]" * 5000 + b"}", b'{"text": 1e999, "id": ' + b"9" * 400 + b"}"),
        reasons=("bad-json", "wrong-type"),
    ),
    "the same id twice": Case({"in.jsonl": lines(*(ROWS[n].replace(f"good-{n}".encode(), b"same") for n in range(4)))}),
    "ids of all types": Case(
        {"in.jsonl": lines(*(row(id=key, text=GOOD[n]) for n, key in enumerate((None, 7, [1], {"a": 2}))))}
    ),
    "an empty document first and last": Case(
        {"in.jsonl": lines(row(id=1, text=""), *ROWS, row(id=2, text=" \n\t"))}, rules=("clean.too-short",)
    ),
    "blank lines and line ends of all kinds": Case({"in.jsonl": b"\n\r\n" + b"\r\n \r\n\n".join(ROWS) + b"\n\n\n"}),
    "no line end at the end, and a byte order mark": Case({"in.jsonl": b"\xef\xbb\xbf" + b"\n".join(ROWS)}),
    "control characters": Case(
        {"in.jsonl": lines(*(row(id=n, text="\0\x01" + text + "\x1b\x7f\x0b") for n, text in enumerate(GOOD)))}
    ),
    "raw control characters in a line": Case(around(b'{"text": "a\x00\x01b"}'), reasons=("bad-json",)),
    "lone surrogates": Case(
        {"in.jsonl": lines(*(r[:-2] + b'\\ud800 \\udfff"}' for r in ROWS))},
    ),
    "right to left": Case(
        around(row(id="rtl", text="\u202e" + "هذا نص عربي طويل بما فيه الكفاية " * 4)), rules=("language.not-accepted",)
    ),
    "nothing but emoji": Case(around(row(id=1, text="😀🎉👨‍👩‍👧‍👦" * 30)), rules=("language.not-accepted",)),
    "emoji in a good text": Case(
        {"in.jsonl": lines(*(row(id=n, text=text + " 😀👨‍👩‍👧") for n, text in enumerate(GOOD)))}
    ),
    "one character a million times": Case(around(row(text="a" * 1_000_000), row(text="字" * 300_000)), rules=("*",)),
    "one word a million times": Case(around(row(text="spam " * 200_000), row(text="垃圾 " * 200_000)), rules=("*",)),
    "a million digits": Case(around(row(text="7" * 1_000_000), row(text="1 " * 500_000)), rules=("*",)),
    "a million marks": Case(
        around(row(text="<" * 500_000), row(text="&amp;" * 200_000), row(text="`" * 500_000)), rules=("*",)
    ),
    "combining marks without end": Case(around(row(text="e" + "\u0301" * 200_000)), rules=("*",)),
    "a line of 50 MB": Case(around(b'{"text": "' + b"x" * (50 << 20) + b'"}'), reasons=("too-large",)),
    "a gzip file cut off": Case({"a.jsonl": lines(*ROWS), "b.jsonl.gz": gzip.compress(lines(row(text="x")) * 99)[:-9]},
                                reasons=("truncated",), rules=("*",)),
    "a gzip file with a bad check sum": Case(
        {"b.jsonl.gz": gzip.compress(lines(*ROWS), mtime=0)[:-8] + b"\0" * 8}, reasons=("corrupt",)
    ),
    "garbage after gzip": Case(
        {"b.jsonl.gz": gzip.compress(lines(*ROWS)) + b"garbage!"}, reasons=("trailing-garbage",)
    ),
    "a Zstandard file cut off": Case(
        {"a.jsonl": lines(*ROWS), "b.jsonl.zst": zstandard.compress(lines(row(text="y")) * 5000)[:-3]},
        reasons=("truncated",),
    ),
    "a Parquet file cut off": Case({"a.jsonl": lines(*ROWS), "b.parquet": GOOD_PARQUET[:-20]}, reasons=("corrupt",)),
    "a Parquet file without a text column": Case(
        {"a.jsonl": lines(*ROWS), "b.parquet": parquet([{"x": 1}])}, reasons=("missing-field",)
    ),
    "Parquet rows of null": Case(
        {"b.parquet": parquet([*({"id": n, "text": t} for n, t in enumerate(GOOD)), {"id": 9, "text": None}])},
        reasons=("wrong-type",),
    ),
    "a WARC file cut off": Case(
        {"a.jsonl": lines(*ROWS), "b.warc": GOOD_WARC[:-200]}, reasons=("truncated",), rules=("*",)
    ),
    "a WARC file that is gzip inside out": Case(
        {"a.jsonl": lines(*ROWS), "b.warc.gz": gzip.compress(b"not a WARC file")}, reasons=("wrong-format",)
    ),
    "wrong extensions": Case({"a.parquet": lines(*ROWS), "b.jsonl": GOOD_PARQUET}, reasons=("wrong-format",)),
    "gzip that is called plain, and plain that is called gzip": Case(
        {"a.jsonl": gzip.compress(lines(*FIRST)), "b.jsonl.gz": lines(*LAST)}
    ),
    "an empty file": Case(
        {"a.jsonl": lines(*ROWS), "b.jsonl": b"", "c.jsonl.gz": gzip.compress(b"")}, reasons=("empty-file",)
    ),
    "a picture that is called text": Case(
        {"a.jsonl": lines(*ROWS), "b.txt": b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40}, reasons=("*",)
    ),
    "an archive that expands a thousandfold": Case(
        {"a.jsonl": lines(*ROWS), "b.jsonl.gz": gzip.compress(b'{"text": "' + b"z" * (64 << 20) + b'"}\n', 9)},
        reasons=("too-large",),
    ),
    "a page nested 100,000 deep": Case({"a.jsonl": lines(*ROWS), "b.html": b"<html>" + b"<div>" * 100_000 + b"x"},
                                       reasons=("*",), rules=("*",)),
    "a page of one tag with 100,000 attributes": Case(
        {"a.jsonl": lines(*ROWS), "b.html": b"<html><p " + b"a=1 " * 100_000 + b">x</p></html>"},
        reasons=("*",), rules=("*",),
    ),
    "a table with a colspan beyond numbers": Case(
        {"a.html": b"<html><table><tr><td colspan=9007199254740991>" + GOOD[0].encode() + b"</td></tr></table></html>"},
        kept=1,
    ),
    "HTML inside HTML without end": Case(around(row(text="<b" * 3000 + ">" * 3000)), rules=("*",)),
}  # fmt: skip


def run(
    tmp_path: Path, files: dict[str, bytes], **options: Any
) -> tuple[dict[str, Any], list[Any], list[Any], list[Any]]:
    """(report, kept, removed, quarantine) of a curation over these files."""
    folder = tmp_path / "in"
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    out = tmp_path / "out"
    report = curate_files([folder], out, CurateConfig(), options=FileOptions(**options))
    quarantine = [json.loads(line) for line in (out / "quarantine.jsonl").read_text("utf-8").splitlines()]
    return report, read_zst(out / "kept.jsonl.zst"), read_zst(out / "removed.jsonl.zst"), quarantine


def accounted(report: dict[str, Any], kept: list[Any], removed: list[Any], quarantine: list[Any]) -> None:
    """Every record is a document, in quarantine or passed over; every document is kept or removed, with a reason."""
    source = report["collected"]["sources"]["input"]
    bad = sum(entry["records"] for entry in source["quarantined"].values())
    passed = sum(entry["records"] for entry in source["passed_over"].values())
    assert source["records"] == source["documents"] + bad + passed
    assert sum(entry["records"] for entry in quarantine) == bad
    assert report["in"]["documents"] == source["documents"] == len(kept) + len(removed)
    assert report["out"]["documents"] == len(kept)
    assert sum(counts["documents"] for counts in report["dropped"].values()) == len(removed)
    for gone in removed:
        assert gone["rule"]
        assert gone["version"] >= 1
        assert gone["detail"]
    for entry in quarantine:
        assert entry["file"]
        assert entry["reason"]


@pytest.mark.parametrize("name", CASES)
def test_good_documents_stay_and_bad_ones_are_named(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    report, kept, removed, quarantine = run(tmp_path, case.files)
    accounted(report, kept, removed, quarantine)
    assert len(kept) == case.kept + case.more
    found = {entry["reason"] for entry in quarantine}
    if case.reasons != ("*",):
        assert found == set(case.reasons)
    if case.rules != ("*",):
        assert {gone["rule"] for gone in removed} == set(case.rules)


def outcome(case: Case) -> str:
    """What becomes of it, for the page on curation."""
    bad = ", ".join(f"`{reason}`" for reason in case.reasons)
    gone = ", ".join(f"`{rule}`" for rule in case.rules)
    words = ["quarantine" if bad == "`*`" else f"quarantine: {bad}"] if bad else []
    words += ["removed by the rule it meets" if gone == "`*`" else f"removed: {gone}"] if gone else []
    return "; ".join(words) or "stays"


OTHER_KINDS = {
    "100,000 tiny documents": "removed: `clean.too-short`, each counted",
    "a line of 1 GB in 1 MB of gzip": "quarantine: `too-large`, in bounded memory",
    "an output folder that cannot be written": "refused before any work",
    "a file that cannot be read, a pipe, a link to nowhere": "quarantine: `unreadable`",
    "a full disk": "stops and says so; the next run is whole",
    "inputs without any document": "exit code 2 and the reasons",
}
"""Of tests of their own, here and in `test_files.py`."""


def test_there_are_at_least_thirty_kinds_and_the_page_lists_each() -> None:
    assert len(CASES) >= 30
    rows = [f"| {name} | {outcome(case)} |" for name, case in CASES.items()]
    rows += [f"| {name} | {what} |" for name, what in OTHER_KINDS.items()]
    page = (REPOSITORY / "docs" / "curate.md").read_text("utf-8")
    assert "\n".join(rows) in page, "docs/curate.md, Bad input:\n" + "\n".join(rows)


def test_a_hundred_thousand_tiny_documents_are_each_accounted_for(tmp_path: Path) -> None:
    tiny = b"".join(b'{"id":%d,"text":"tiny %d"}\n' % (n, n) for n in range(100_000))
    report, kept, removed, quarantine = run(tmp_path, {"in.jsonl": lines(*FIRST) + tiny + lines(*LAST)})
    accounted(report, kept, removed, quarantine)
    assert len(kept) == 4
    assert report["dropped"]["clean.too-short"]["documents"] == 100_000


def test_a_bomb_takes_bounded_memory(tmp_path: Path) -> None:
    """1 GB in a line, in 1 MB of gzip: more memory than the whole run may have."""
    stream = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    block = b"z" * (16 << 20)
    with open(tmp_path / "bomb.jsonl.gz", "wb") as file:
        file.write(stream.compress(b'{"text": "'))
        for _ in range(64):
            file.write(stream.compress(block))
        file.write(stream.flush())
    (tmp_path / "good.jsonl").write_bytes(lines(*ROWS))
    code = (
        "import re; from pathlib import Path; from headwater.curate.files import curate_files\n"
        "report = curate_files([Path('bomb.jsonl.gz'), Path('good.jsonl')], Path('out'))\n"
        # Not ru_maxrss, which a new process takes over from the one that started it.
        "peak = re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1]\n"
        "print(report['out']['documents'], peak)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=200)
    kept, memory = done.stdout.split()
    assert int(kept) == 4, done.stderr
    assert int(memory) < 900_000  # kB; the line alone is 1 GB


def test_a_folder_that_cannot_be_written_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(lines(*ROWS))
    (tmp_path / "file").write_bytes(b"in the way")
    with pytest.raises((HeadwaterError, OSError)) as caught:  # the command line says either in words
        curate_files([tmp_path / "in.jsonl"], tmp_path / "file" / "out")
    assert str(tmp_path / "file") in str(caught.value)
    assert (tmp_path / "file").read_bytes() == b"in the way"


def test_a_file_that_cannot_be_read_is_quarantined(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines(*ROWS))
    os.mkfifo(tmp_path / "pipe.jsonl")  # never opened, or the run would hang
    (tmp_path / "gone.jsonl").symlink_to(tmp_path / "nowhere.jsonl")
    out = tmp_path.with_name(tmp_path.name + "-out")
    report = curate_files([tmp_path], out)
    assert report["out"]["documents"] == 4
    bad = [json.loads(line) for line in (out / "quarantine.jsonl").read_text().splitlines()]
    assert [(Path(entry["file"]).name, entry["reason"]) for entry in bad] == [
        ("gone.jsonl", "unreadable"),
        ("pipe.jsonl", "unreadable"),
    ]


LIMITED = """
import resource, sys
from pathlib import Path
from headwater.core.errors import HeadwaterError
from headwater.curate.files import curate_files
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), int(sys.argv[1])))
import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
try:
    curate_files([Path("in.jsonl")], Path("out"))
except HeadwaterError as error:
    print(type(error).__name__, error)
    sys.exit(error.exit_code if hasattr(error, "exit_code") else 3)
"""


def test_a_full_disk_is_said_in_words_and_the_next_run_is_whole(tmp_path: Path) -> None:
    """A limit on the size of files is what a full disk looks like to a writer: a short write, then an error."""
    draw = random.Random(0)
    texts = [GOOD[0] + " " + "".join(draw.choices("abcdefghij klmnopqrst uvwxyz ", k=400)) for _ in range(400)]
    (tmp_path / "in.jsonl").write_bytes(lines(*(row(id=n, text=text) for n, text in enumerate(texts))))
    limited = [sys.executable, "-c", LIMITED, "3000"]
    done = subprocess.run(limited, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode not in (0, 1), done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout.strip()
    assert not (tmp_path / "out" / "kept.jsonl.zst").exists()
    report = curate_files([tmp_path / "in.jsonl"], tmp_path / "out")
    assert report["in"]["documents"] == 400
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] in (resource.RLIM_INFINITY, -1)
