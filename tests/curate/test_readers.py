import codecs
import gzip
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from headwater.core.errors import InputError
from headwater.curate.config import CollectConfig, SourceConfig
from headwater.curate.readers import read_file
from headwater.curate.records import Bad, Item, Reason, Record, Skip, Skipped
from headwater.curate.sources import ShardPlan, plan_shards, source_files


def items(path: Path, **fields: Any) -> list[Item]:
    """Everything a source of one path gives."""
    source = SourceConfig(name="test", paths=(path.name,), **fields)
    return [item for file in source_files(source, path.parent) for item in read_file(file, source)]


def texts(found: list[Item]) -> list[str]:
    return [item.text for item in found if isinstance(item, Record)]


def reasons(found: list[Item]) -> list[str]:
    return [item.reason.value for item in found if isinstance(item, Bad)]


def line(text: str, **fields: Any) -> bytes:
    return json.dumps({"text": text, **fields}, ensure_ascii=False).encode()


def write(path: Path, *lines: bytes) -> Path:
    path.write_bytes(b"\n".join(lines))
    return path


def test_a_bad_line_costs_that_line_only(tmp_path: Path) -> None:
    bad = {
        b'{"text": "caf\xe9"}': Reason.BAD_UTF8,
        b"{not json": Reason.BAD_JSON,
        b"[1,2]": Reason.NOT_AN_OBJECT,
        b"null": Reason.NOT_AN_OBJECT,
        b'"text"': Reason.NOT_AN_OBJECT,
        b'{"body": "x"}': Reason.MISSING_FIELD,
        b'{"text": null}': Reason.WRONG_TYPE,
        b'{"text": 5}': Reason.WRONG_TYPE,
        b'{"text": ["a"]}': Reason.WRONG_TYPE,
        b'{"text": "x", "domain": "../etc"}': Reason.BAD_DOMAIN,
        b"[" * 100_000: Reason.BAD_JSON,
        b"\0" * 50: Reason.BAD_JSON,
    }
    lines = [part for number, kind in enumerate(bad) for part in (line(f"good {number}"), kind)]
    path = write(tmp_path / "a.jsonl", *lines, b"", b"  ", line("last"))
    found = items(path)
    assert texts(found) == [f"good {number}" for number in range(len(bad))] + ["last"]
    assert reasons(found) == [reason.value for reason in bad.values()]
    assert sum(item.raw_bytes for item in found) == path.stat().st_size
    assert Counter(item.reason for item in found if isinstance(item, Skipped)) == {Skip.BLANK_LINE: 2}
    whole = path.read_bytes()
    for item, number in zip((item for item in found if isinstance(item, Bad)), range(2, 99, 2), strict=False):
        assert item.line == number
        assert whole[item.offset :].startswith(lines[number - 1])
        assert len(item.detail) < 400


def test_odd_but_meaningful_rows_are_kept(tmp_path: Path) -> None:
    lines = [
        b"\xef\xbb\xbf" + line("after a byte order mark"),
        b'{"text": "with NaN", "score": NaN, "n": ' + b"9" * 40 + b"}",
        b'{"text": "lone \\ud800 surrogate", "id": "\\udfff"}',
        b'{"text": "windows line"}\r',
        b'{"text": ""}',
        b'{"text": "twice", "text": "the last counts"}',
        '{"text": "🙂 \\u0000 مرحبا"}'.encode(),
    ]
    found = items(write(tmp_path / "a.jsonl", *lines))
    assert reasons(found) == []
    assert texts(found)[0] == "after a byte order mark"
    assert "\ufffd" in texts(found)[2]
    assert texts(found)[4:6] == ["", "the last counts"]
    for text in texts(found):
        text.encode()


def test_fields_of_a_row_become_fields_of_the_document(tmp_path: Path) -> None:
    row = line("x", id="a1", lang="zh-CN", domain="books", license="MIT", url="http://u", source="github x")
    (record,) = items(write(tmp_path / "a.jsonl", row))
    assert isinstance(record, Record)
    assert (record.lang, record.domain, record.license, record.url) == ("zh", "books", "MIT", "http://u")
    assert record.meta == {"row_id": "a1", "row_source": "github x"}
    (given,) = items(tmp_path / "a.jsonl", domain="web", lang="en", license="CC0-1.0")
    assert isinstance(given, Record)
    assert (given.lang, given.domain, given.license) == ("en", "web", "CC0-1.0")


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_a_truncated_file_keeps_its_good_rows(tmp_path: Path, pack) -> None:  # type: ignore[no-untyped-def]
    rows = [line(f"row {number} " + os.urandom(200).hex()) for number in range(2000)]
    data = pack(b"\n".join(rows))
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(data[: len(data) * 2 // 3])
    found = items(path)
    kept = texts(found)
    assert 500 < len(kept) < 2000
    assert kept == [json.loads(row)["text"] for row in rows[: len(kept)]]
    assert set(reasons(found)) == {"truncated"}


def test_the_last_row_of_a_truncated_file_counts_if_it_is_whole(tmp_path: Path) -> None:
    packer = zstandard.ZstdCompressor().compressobj()
    data = packer.compress(line("one") + b"\n" + line("two")) + packer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    (tmp_path / "a.jsonl").write_bytes(data)
    found = items(tmp_path / "a.jsonl")
    assert texts(found) == ["one", "two"]
    assert reasons(found) == ["truncated"]


def test_a_huge_line_is_passed_over_without_being_held(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", line("before"), b'{"text": "' + b"x" * 5_000_000 + b'"}', line("after"))
    found = items(path, max_document_bytes=100_000)
    assert texts(found) == ["before", "after"]
    assert reasons(found) == ["too-large"]
    assert sum(item.raw_bytes for item in found) == path.stat().st_size


def test_empty_unreadable_and_misnamed_files_are_named(tmp_path: Path) -> None:
    assert reasons(items(write(tmp_path / "empty.jsonl"))) == ["empty-file"]
    (tmp_path / "empty.jsonl.gz").write_bytes(gzip.compress(b""))
    assert reasons(items(tmp_path / "empty.jsonl.gz")) == ["empty-file"]
    assert reasons(items(write(tmp_path / "no.parquet", line("x")))) == ["wrong-format"]
    assert reasons(items(write(tmp_path / "no.parquet", line("x")), kind="parquet")) == ["wrong-format"]
    assert reasons(items(write(tmp_path / "no.warc", b"<p>"))) == ["wrong-format"]
    assert [item.reason for item in items(_folder_with(tmp_path, "x.bin", b"\x01\x02"))] == [Skip.UNKNOWN_KIND]
    path = tmp_path / "gone.jsonl"
    path.write_bytes(line("x"))
    source = SourceConfig(name="test", paths=(path.name,))
    (file,) = source_files(source, tmp_path)
    path.unlink()
    assert reasons(list(read_file(file, source))) == ["unreadable"]


def _folder_with(tmp_path: Path, name: str, data: bytes) -> Path:
    folder = tmp_path / f"folder-{name}"
    folder.mkdir()
    (folder / name).write_bytes(data)
    return folder


def test_content_wins_over_a_wrong_extension(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["from parquet"]}), tmp_path / "a.jsonl")
    assert texts(items(tmp_path / "a.jsonl")) == ["from parquet"]
    (tmp_path / "b.txt.gz").write_bytes(b"plain text, called gz")
    assert texts(items(tmp_path / "b.txt.gz")) == ["plain text, called gz"]
    (tmp_path / "noname").write_bytes(line("rows without an extension"))
    assert texts(items(tmp_path / "noname")) == ["rows without an extension"]


def test_slices_of_a_large_file_give_each_line_once(tmp_path: Path) -> None:
    from headwater.curate.sources import SourceFile

    path = write(tmp_path / "a.jsonl", *(line("x" * (number % 37)) for number in range(200)), b"bad", line("end"))
    size = path.stat().st_size
    source = SourceConfig(name="test", paths=("a.jsonl",))
    whole = [(item.position, item.text) for item in items(path) if isinstance(item, Record)]
    for step in (1, 7, 100, 999, size - 1):
        found: list[Item] = []
        for start in range(0, size, step):
            end = min(size, start + step)
            found += read_file(SourceFile(str(path), "a.jsonl", size, "jsonl", start=start, end=end), source)
        assert [(item.position, item.text) for item in found if isinstance(item, Record)] == whole
        assert reasons(found) == ["bad-json"]


def test_parquet_rows_are_read_with_their_row_numbers(tmp_path: Path) -> None:
    table = pa.table({"text": ["a", "", None, "b"], "id": [1, 2, 3, 4], "extra": [{"x": 1}] * 4})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    found = items(tmp_path / "a.parquet", keep_rows=True)
    assert [(item.position, item.text) for item in found if isinstance(item, Record)] == [(0, "a"), (1, ""), (3, "b")]
    assert reasons(found) == ["wrong-type"]
    assert json.loads(found[0].meta["row"]) == {"text": "a", "id": 1, "extra": {"x": 1}}  # type: ignore[union-attr]


def test_a_parquet_file_with_bad_utf8_loses_that_row_only(tmp_path: Path) -> None:
    values = pa.array([b"good", b"\xff\xfe", b"also good"], pa.binary())
    bad = pa.StringArray.from_buffers(3, values.buffers()[1], values.buffers()[2])
    pq.write_table(pa.table({"text": bad}), tmp_path / "a.parquet")
    found = items(tmp_path / "a.parquet")
    assert texts(found) == ["good", "also good"]
    assert reasons(found) == ["bad-utf8"]


def test_a_broken_row_group_costs_its_rows_only(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    rows = [os.urandom(500).hex() for _ in range(300)]
    pq.write_table(pa.table({"text": rows}), path, row_group_size=100, use_dictionary=False)
    middle = pq.ParquetFile(path).metadata.row_group(1).column(0)
    data = bytearray(path.read_bytes())
    start = middle.data_page_offset
    data[start : start + middle.total_compressed_size] = b"\xff" * middle.total_compressed_size
    path.write_bytes(bytes(data))
    found = items(path)
    assert texts(found) == rows[:100] + rows[200:]
    assert reasons(found) == ["corrupt"]
    assert sum(item.records for item in found if isinstance(item, Bad)) == 100


def test_truncated_and_wrong_parquet_files_are_quarantined(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"body": ["x"] * 5}), path)
    found = items(path)
    assert reasons(found) == ["missing-field"]
    assert found[0].records == 5  # type: ignore[union-attr]
    path.write_bytes(path.read_bytes()[:-20])
    assert reasons(items(path)) == ["corrupt"]
    pq.write_table(pa.table({"text": [1, 2]}), path)
    assert reasons(items(path)) == ["wrong-type", "wrong-type"]


CHINESE = "我们在这里写下一段足够长的中文文字，用来检查编码识别是否正确，以及标点符号有没有保留下来。" * 3


def test_text_files_in_east_asian_encodings_are_recognised(tmp_path: Path) -> None:
    for encoding in ("utf-8", "gb18030", "utf-16"):
        (tmp_path / "a.txt").write_bytes(CHINESE.encode(encoding))
        assert texts(items(tmp_path / "a.txt")) == [CHINESE], encoding
    (tmp_path / "a.txt").write_bytes(CHINESE.encode("gb18030"))
    assert texts(items(tmp_path / "a.txt", encoding="gb18030")) == [CHINESE]
    (tmp_path / "a.txt").write_bytes(codecs.BOM_UTF8 + b"marked")
    assert texts(items(tmp_path / "a.txt")) == ["marked"]


def test_text_that_cannot_be_decoded_is_quarantined_not_garbled(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("Le café est fermé, hélas.".encode("latin-1"))
    assert reasons(items(tmp_path / "a.txt")) == ["bad-utf8"]
    assert texts(items(tmp_path / "a.txt", encoding="latin-1")) == ["Le café est fermé, hélas."]
    (tmp_path / "a.txt").write_bytes(b"MZ\x00\x01 binary")
    assert reasons(items(tmp_path / "a.txt")) == ["binary"]
    (tmp_path / "a.txt").write_bytes(b"x" * 1000)
    assert reasons(items(tmp_path / "a.txt", max_document_bytes=999)) == ["too-large"]
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(os.urandom(1000).hex().encode())[:-30])
    assert reasons(items(tmp_path / "a.txt.gz")) == ["truncated"]


def test_lines_of_a_text_file_can_be_documents(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"first\r", b"", b"\xff", "第二".encode())
    found = items(path, document="line")
    assert [(item.position, item.text) for item in found if isinstance(item, Record)] == [(0, "first"), (10, "第二")]
    assert reasons(found) == ["bad-utf8"]


def test_markdown_loses_its_front_matter_and_keeps_the_title(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("---\ntitle: 'A page'\ndate: 2020\n---\n# Heading\n\n---\n\ntext", encoding="utf-8")
    (record,) = items(tmp_path / "a.md")
    assert isinstance(record, Record)
    assert record.text == "# Heading\n\n---\n\ntext"
    assert record.meta == {"title": "A page"}


def test_a_folder_is_read_in_the_order_of_names_without_hidden_files(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    for name in ("b.txt", "a/z.txt", ".hidden.txt", ".git/x.txt", "a-b.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    assert texts(items(folder)) == ["a-b.txt", "a/z.txt", "b.txt"]
    source = SourceConfig(name="test", paths=("folder/**/*.txt",))
    assert [file.relative for file in source_files(source, tmp_path)] == [
        "folder/a-b.txt",
        "folder/a/z.txt",
        "folder/b.txt",
    ]
    absolute = SourceConfig(name="test", paths=(str(folder / "a"), str(folder / "b.txt")))
    assert [file.relative for file in source_files(absolute, Path("/nowhere"))] == ["a/z.txt", "b.txt"]


def test_a_path_that_matches_nothing_is_an_error_with_the_place(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing there") as error:
        source_files(SourceConfig(name="web", paths=("missing-*.jsonl",)), tmp_path)
    assert str(tmp_path / "missing-*.jsonl") in str(error.value)
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same.txt").write_text(folder)
    both = SourceConfig(name="web", paths=(str(tmp_path / "x" / "same.txt"), str(tmp_path / "y" / "same.txt")))
    with pytest.raises(InputError, match=r"both 'same\.txt'"):
        source_files(both, tmp_path / "elsewhere")


def test_row_groups_of_a_large_parquet_file_are_read_apart_with_the_same_rows(tmp_path: Path) -> None:
    table = pa.table({"text": [f"row {number} " + "x" * (number % 50) for number in range(1000)]})
    pq.write_table(table, tmp_path / "big.parquet", row_group_size=100, compression="none")
    (tmp_path / "broken.parquet").write_bytes((tmp_path / "big.parquet").read_bytes()[:-9])

    def plans(shard_bytes: int) -> list[ShardPlan]:
        source = SourceConfig(name="s", paths=("*.parquet",))
        return plan_shards(CollectConfig(root=str(tmp_path), sources=(source,), shard_bytes=shard_bytes))

    def rows(found: list[ShardPlan]) -> list[tuple[int, str]]:
        items = [item for plan in found for file in plan.files for item in read_file(file, plan.source)]
        return [(item.position, item.text) for item in items if isinstance(item, Record)]

    whole, apart = plans(1 << 30), plans(10_000)
    assert len(whole) == 1
    assert 4 <= len(apart) <= 10
    assert rows(apart) == rows(whole) == list(enumerate(table.column("text").to_pylist()))
    assert (
        sum(file.bytes for plan in apart for file in plan.files if file.end) < (tmp_path / "big.parquet").stat().st_size
    )
