import gzip
from pathlib import Path

import pytest

from headwater.curate.config import SourceConfig
from headwater.curate.readers import read_file
from headwater.curate.records import Bad, Item, Record, Skipped
from headwater.curate.sources import source_files
from headwater.curate.streams import RawStream

SENTENCE = b"The river rose over night and the mill stood in the water until the morning came. "


def record(kind: bytes, block: bytes, length: int | None = None, **fields: bytes) -> bytes:
    head = b"WARC/1.0\r\nWARC-Type: " + kind + b"\r\nWARC-Target-URI: http://e.org/" + kind
    for name, value in fields.items():
        head += b"\r\n" + name.replace("_", "-").encode() + b": " + value
    return head + b"\r\nContent-Length: %d\r\n\r\n" % (len(block) if length is None else length) + block + b"\r\n\r\n"


def response(body: bytes, status: bytes = b"200 OK", media: bytes = b"text/html", more: bytes = b"") -> bytes:
    http = b"HTTP/1.1 " + status + b"\r\nContent-Type: " + media + b"\r\n" + more + b"\r\n" + body
    return record(b"response", http, Content_Type=b"application/http; msgtype=response")


PAGE = b"<html><body><main><p>" + SENTENCE * 4 + b"</p></main></body></html>"
GOOD = response(PAGE)
WET = record(b"conversion", SENTENCE, Content_Type=b"text/plain")


def read(path: Path, data: bytes, **fields: int) -> list[Item]:
    path.write_bytes(data)
    source = SourceConfig(name="crawl", paths=(str(path),), **fields)  # type: ignore[arg-type]
    return [item for file in source_files(source, path.parent) for item in read_file(file, source)]


def summary(found: list[Item]) -> tuple[int, list[str], int]:
    """Documents, reasons of bad places, records passed over."""
    bad = [item.reason.value for item in found if isinstance(item, Bad)]
    skipped = sum(item.records for item in found if isinstance(item, Skipped))
    return sum(isinstance(item, Record) for item in found), bad, skipped


def test_pages_and_wet_records_become_documents_and_the_rest_is_passed_over(tmp_path: Path) -> None:
    data = record(b"warcinfo", b"x") + record(b"request", b"GET /") + GOOD + WET + record(b"metadata", b"m")
    data += (
        response(b"", b"301 Moved") + response(b"\x89PNG", media=b"image/png") + response(SENTENCE, media=b"text/plain")
    )
    found = read(tmp_path / "a.warc", data)
    assert summary(found) == (3, [], 5)
    assert sum(item.raw_bytes for item in found) == len(data)
    pages = [item for item in found if isinstance(item, Record)]
    assert pages[0].text == (SENTENCE * 4).decode().strip()
    assert pages[0].url == "http://e.org/response"
    assert data[pages[0].position :].startswith(GOOD)
    assert summary(read(tmp_path / "a.wet", WET)) == (1, [], 0)


def test_compressed_and_chunked_bodies_are_decoded(tmp_path: Path) -> None:
    packed = response(gzip.compress(PAGE), more=b"Content-Encoding: gzip\r\n")
    chunked = b"%x\r\n" % len(PAGE) + PAGE + b"\r\n0\r\n\r\n"
    data = packed + response(chunked, more=b"Transfer-Encoding: chunked\r\n")
    found = read(tmp_path / "a.warc.gz", b"".join(gzip.compress(part) for part in (packed, data[len(packed) :])))
    assert [item.text for item in found if isinstance(item, Record)] == [(SENTENCE * 4).decode().strip()] * 2


def test_a_cut_off_record_is_quarantined_and_the_ones_before_are_kept(tmp_path: Path) -> None:
    assert summary(read(tmp_path / "a.warc", GOOD + GOOD[:-200])) == (1, ["truncated"], 0)
    members = gzip.compress(GOOD) * 2
    documents, bad, _ = summary(read(tmp_path / "a.warc.gz", members[:-100]))
    assert (documents, set(bad)) == (1, {"truncated"})


def test_a_damaged_gzip_member_costs_that_member_only(tmp_path: Path) -> None:
    members = [bytearray(gzip.compress(GOOD)) for _ in range(3)]
    members[1][60:90] = b"\0" * 30
    documents, bad, _ = summary(read(tmp_path / "a.warc.gz", b"".join(members)))
    assert documents == 2
    assert set(bad) == {"corrupt"}


def test_stray_bytes_and_wrong_lengths_cost_what_they_cover(tmp_path: Path) -> None:
    assert summary(read(tmp_path / "a.warc", GOOD + b"garbage\r\n" * 9 + GOOD)) == (2, ["bad-record"], 0)
    assert summary(read(tmp_path / "b.warc", b"WARC/1.0\r\nno: length\r\n\r\n" + GOOD)) == (1, ["bad-record"], 0)
    for length in (3, 10_000):
        wrong = record(b"conversion", SENTENCE, length, Content_Type=b"text/plain")
        found = read(tmp_path / "c.warc", wrong + WET)
        assert [item.text for item in found if isinstance(item, Record)] == [SENTENCE.decode().strip()] * 2


def test_a_record_over_the_cap_is_passed_without_being_held(tmp_path: Path) -> None:
    data = GOOD + response(b"x" * 3_000_000) + GOOD
    found = read(tmp_path / "a.warc", data, max_document_bytes=100_000)
    assert summary(found) == (2, ["too-large"], 0)
    assert sum(item.raw_bytes for item in found) == len(data)
    bomb = response(gzip.compress(b"x" * 3_000_000), more=b"Content-Encoding: gzip\r\n")
    assert summary(read(tmp_path / "b.warc", bomb + GOOD, max_document_bytes=100_000)) == (1, ["too-large"], 0)


@pytest.mark.parametrize(
    ("name", "documents", "bad"),
    [
        ("sample-0000.warc.gz", 22, set()),
        ("warcfile.warc.gz", 16, set()),
        ("example.warc.gz", 1, set()),
        ("example-bad.warc.gz.bad", 1, set()),
        ("example-iana.org-chunked.warc", 1, set()),
        ("example-trunc.warc", 1, {"bad-record"}),
        ("clipped.warc.gz", 0, {"truncated"}),
        ("sample.warc.txt", 3, set()),
    ],
)
def test_real_archives_good_and_broken(shared_data: Path, name: str, documents: int, bad: set[str]) -> None:
    source = SourceConfig(name="crawl", paths=(str(shared_data / "warc" / name),))
    (file,) = source_files(source, shared_data)
    found = list(read_file(file, source))
    assert (summary(found)[0], set(summary(found)[1])) == (documents, bad)
    stream = RawStream(Path(file.path))
    assert sum(item.raw_bytes for item in found) == sum(map(len, stream.chunks()))
