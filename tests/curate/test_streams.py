import gzip
import resource
import zlib
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from headwater.curate.lines import split_lines
from headwater.curate.records import Reason
from headwater.curate.streams import CHUNK_BYTES, RawStream, next_gzip_member

TEXT = b"".join(b"line %d of a stream\n" % number for number in range(20_000))


def zst(data: bytes) -> bytes:
    """A frame with a checksum, as the zstd command writes it."""
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


def read(path: Path) -> tuple[bytes, RawStream]:
    stream = RawStream(path)
    return b"".join(stream.chunks()), stream


@pytest.mark.parametrize("name", ["a.gz", "a.zst", "a.txt", "a.parquet"])
def test_compression_is_known_by_content_not_by_name(tmp_path: Path, name: str) -> None:
    for data in (TEXT, gzip.compress(TEXT), zstandard.compress(TEXT)):
        (tmp_path / name).write_bytes(data)
        found, stream = read(tmp_path / name)
        assert found == TEXT
        assert stream.damage is None
        assert stream.total == len(TEXT)


def test_members_and_frames_that_follow_each_other_are_one_stream(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(gzip.compress(b"one\n") + gzip.compress(b"") + gzip.compress(b"two\n") + b"\0" * 100)
    assert read(path)[0] == b"one\ntwo\n"
    assert read(path)[1].damage is None
    skippable = b"\x50\x2a\x4d\x18" + (3000).to_bytes(4, "little") + b"x" * 3000
    path.write_bytes(skippable + zstandard.compress(b"one\n") + skippable + zstandard.compress(b"two\n"))
    assert read(path)[0] == b"one\ntwo\n"
    assert read(path)[1].damage is None


@pytest.mark.parametrize("pack", [gzip.compress, zst])
def test_a_cut_off_stream_gives_what_it_had_and_says_so(tmp_path: Path, pack) -> None:  # type: ignore[no-untyped-def]
    data = pack(TEXT)
    (tmp_path / "a").write_bytes(data[: len(data) // 2])
    found, stream = read(tmp_path / "a")
    assert TEXT.startswith(found)
    assert len(found) > len(TEXT) // 4
    assert stream.damage is not None
    assert (stream.damage.reason, stream.damage.offset) == (Reason.TRUNCATED, len(found))


@pytest.mark.parametrize("pack", [gzip.compress, zst])
def test_garbage_inside_or_after_is_damage(tmp_path: Path, pack) -> None:  # type: ignore[no-untyped-def]
    data = bytearray(pack(TEXT))
    (tmp_path / "after").write_bytes(bytes(data) + b"not compressed at all")
    found, stream = read(tmp_path / "after")
    assert found == TEXT
    assert stream.damage is not None
    assert stream.damage.reason == Reason.TRAILING_GARBAGE
    data[len(data) // 2 : len(data) // 2 + 20] = b"\xff" * 20
    (tmp_path / "inside").write_bytes(bytes(data))
    found, stream = read(tmp_path / "inside")
    assert stream.damage is not None
    assert stream.damage.reason == Reason.CORRUPT


def test_the_next_gzip_member_is_found_after_damage(tmp_path: Path) -> None:
    first = gzip.compress(TEXT)
    (tmp_path / "a").write_bytes(first + gzip.compress(b"two"))
    assert next_gzip_member(tmp_path / "a", 0) == len(first)
    assert next_gzip_member(tmp_path / "a", len(first)) is None


def test_a_stream_that_expands_a_thousandfold_takes_no_memory(tmp_path: Path) -> None:
    compressor = zlib.compressobj(9, wbits=31)
    block = b"\0" * (1 << 20)
    data = b"".join(compressor.compress(block) for _ in range(100)) + compressor.flush()
    (tmp_path / "bomb.gz").write_bytes(data)
    (tmp_path / "bomb.zst").write_bytes(zstandard.compress(block * 100))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name in ("bomb.gz", "bomb.zst"):
        stream = RawStream(tmp_path / name)
        assert max(map(len, stream.chunks())) <= CHUNK_BYTES
        assert stream.total == 100 << 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 80_000  # kB


@given(st.lists(st.binary(max_size=8).map(lambda data: data.replace(b"\0", b"\n")), max_size=12))
def test_lines_are_those_of_the_whole_however_it_is_cut(chunks: list[bytes]) -> None:
    whole = b"".join(chunks)
    lines = list(split_lines(chunks, cap=100))
    expected = whole.split(b"\n")
    if not expected[-1]:
        expected.pop()
    assert [line.data for line in lines] == expected
    assert sum(line.size for line in lines) == len(whole)
    assert [line.number for line in lines] == list(range(1, len(lines) + 1))
    for line in lines:
        assert whole[line.offset : line.offset + line.size].removesuffix(b"\n") == line.data


@given(st.lists(st.binary(max_size=12), max_size=12), st.integers(1, 20))
def test_lines_over_the_cap_are_counted_not_kept(chunks: list[bytes], cap: int) -> None:
    whole = list(split_lines(chunks, cap=1000))
    capped = list(split_lines(chunks, cap=cap))
    assert [(line.offset, line.number, line.size) for line in whole] == [
        (line.offset, line.number, line.size) for line in capped
    ]
    for line, short in zip(whole, capped, strict=True):
        assert line.data is not None
        assert short.data == (line.data if len(line.data) <= cap else None)
