"""JSON Lines (plain, gzip, Zstandard) and Parquet in, row by row with their bytes; JSON Lines with Zstandard out.

A row that cannot be used (bad UTF-8, no JSON object, no text) is counted and listed, and costs nothing else. Reading
the same file twice gives the same rows under the same line numbers.

    source = RowSource(Path("web.jsonl.gz"), Fields())
    for row in source.rows(): row.line, row.id, row.text, row.data
    source.bad
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import orjson
import xxhash
import zstandard

from headwater.core.errors import InputError
from headwater.core.files import disk_errors, fsync_file, temp_path
from headwater.core.jsonl import canonical_json
from headwater.core.rawinput import walk_files
from headwater.curate.lines import split_lines
from headwater.curate.readers.jsonl import RowError, parse_object
from headwater.curate.records import QUARANTINE, Reason
from headwater.curate.streams import RawStream

SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".json.gz", ".ndjson", ".ndjson.gz", ".ndjson.zst", ".parquet")
"""What is read of a folder; a file that is named is read whatever it is called."""

MOST_LINE_BYTES = 1 << 30
KEPT, REMOVED, REPORT = "kept.jsonl.zst", "removed.jsonl.zst", "report.json"
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Fields:
    """Names of the fields that are looked at."""

    text: str = "text"
    id: str = "id"
    domain: str = "domain"


@dataclass(slots=True)
class Row:
    """One usable row: its line number from 1, its bytes without the newline, and what they say."""

    line: int
    data: bytes
    id: str
    text: bytes
    domain: str
    lang: str
    value: dict[str, Any]


@dataclass(frozen=True)
class BadRow:
    """One row that could not be used."""

    file: str
    line: int
    offset: int
    reason: str
    detail: str


def find_files(inputs: Sequence[Path]) -> list[Path]:
    """Files named, and those with a known suffix below folders, sorted; of a folder that a file verb wrote, what it
    kept. Raises InputError for a path that does not exist and for a folder without such files."""
    found: list[Path] = []
    for path in map(Path, inputs):
        if path.is_dir():
            inside = [path / KEPT] if (path / KEPT).is_file() and (path / REPORT).is_file() else _below(path)
            if not inside:
                raise InputError(
                    "no file to read in this folder", where=str(path), mend=f"it reads {', '.join(SUFFIXES)}"
                )
            found += inside
        elif path.exists():
            found.append(path)
        else:
            raise InputError("no such file or folder", where=str(path), mend="check the path")
    return list(dict.fromkeys(found))


def _below(folder: Path) -> list[Path]:
    files = (path for path in visible_files(folder) if path.name.endswith(SUFFIXES))
    return sorted(path for path in files if path.name != QUARANTINE)


def visible_files(folder: Path) -> Iterator[Path]:
    """Files below a folder, links followed, without those that are hidden or in hidden folders. Raises InputError on a
    loop of links or an unreadable folder."""
    for path in walk_files(folder):
        if not any(part.startswith(".") for part in path.relative_to(folder).parts):
            yield path


class RowSource:
    """One input file. `bad` lists what `rows` could not use, `blank` counts empty lines."""

    def __init__(self, path: Path, fields: Fields, *, text_needed: bool = True) -> None:
        self.path, self.fields, self.text_needed = path, fields, text_needed
        self.bad: list[BadRow] = []
        self.blank = 0
        self.read = 0
        self._state = (0, 0)

    def _stat(self) -> tuple[int, int]:
        """Size and time of the file."""
        try:
            found = self.path.stat()
        except OSError as error:
            raise InputError(f"cannot read: {error.strerror or error}", where=str(self.path)) from error
        return found.st_size, found.st_mtime_ns

    def rows(self) -> Iterator[Row]:
        """Usable rows in order. Raises InputError if the file cannot be opened."""
        self.bad.clear()
        self.blank = self.read = 0
        self._state = self._stat()
        for line, offset, data in self._lines():
            self.read += 1
            try:
                row = self._row(line, data)
            except RowError as error:
                self._refuse(line, offset, error.reason, error.detail)
            else:
                yield row

    def again(self) -> Iterator[tuple[int, bytes]]:
        """(line, bytes) of the rows that `rows` gave, without parsing. Raises InputError if the file has changed."""
        refused = {bad.line for bad in self.bad}
        wanted, before = self.read, list(self.bad)
        self.blank = self.read = 0
        for line, _, data in self._lines():
            self.read += 1
            if line not in refused:
                yield line, data
        self.bad = before
        if self.read != wanted or self._stat() != self._state:
            raise InputError("the file changed while it was read", where=str(self.path), mend="run again")

    def _refuse(self, line: int, offset: int, reason: Reason, detail: str) -> None:
        self.bad.append(BadRow(str(self.path), line, offset, reason.value, detail[:200]))

    def _lines(self) -> Iterator[tuple[int, int, bytes]]:
        try:
            with open(self.path, "rb") as file:
                magic = file.read(4)
            yield from self._parquet() if magic == b"PAR1" else self._json_lines()
        except OSError as error:
            raise InputError(f"cannot read: {error.strerror or error}", where=str(self.path)) from error

    def _json_lines(self) -> Iterator[tuple[int, int, bytes]]:
        stream = RawStream(self.path)
        number = 0
        for line in split_lines(stream.chunks(), MOST_LINE_BYTES):
            number = line.number
            if line.data is None:
                self._refuse(number, line.offset, Reason.TOO_LARGE, f"{line.size:,} bytes in one line")
                self.read += 1
                continue
            data = line.data.removeprefix(_BOM) if number == 1 else line.data
            data = data.strip(b" \t\r")
            if not data:
                self.blank += 1
            elif stream.damage and not line.whole and not data.endswith(b"}"):
                self._refuse(number, line.offset, stream.damage.reason, f"{stream.damage.detail}; this line is cut off")
                self.read += 1
            else:
                yield number, line.offset, data
        if stream.damage:
            self._refuse(number + 1, stream.damage.offset, stream.damage.reason, stream.damage.detail)
            self.read += 1

    def _parquet(self) -> Iterator[tuple[int, int, bytes]]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        number = 0
        try:
            table = pq.ParquetFile(self.path)
        except (pa.ArrowException, OSError, ValueError) as error:
            self._refuse(1, 0, Reason.CORRUPT, str(error))
            self.read += 1
            return
        with table:
            for group in range(table.num_row_groups):
                end = number + table.metadata.row_group(group).num_rows
                try:
                    for batch in table.iter_batches(1024, row_groups=[group]):
                        for value in batch.to_pylist():
                            number += 1
                            yield number, number - 1, orjson.dumps(value, default=str)
                except (pa.ArrowException, OSError) as error:
                    for lost in range(number + 1, end + 1):
                        self._refuse(lost, lost - 1, Reason.CORRUPT, f"row group {group}: {error}")
                        self.read += 1
                number = end

    def _row(self, line: int, data: bytes) -> Row:
        value = parse_object(data)
        text = value.get(self.fields.text)
        if not isinstance(text, str):
            if self.text_needed:
                missing = self.fields.text not in value
                raise RowError(
                    Reason.MISSING_FIELD if missing else Reason.WRONG_TYPE,
                    f"no field {self.fields.text!r}" if missing else f"{self.fields.text!r} is no text",
                )
            text = ""
        content = text.encode("utf-8", "surrogatepass")
        name = value.get(self.fields.id)
        if not (isinstance(name, str | int) and not isinstance(name, bool) and name != ""):
            name = f"xxh3-{xxhash.xxh3_128_hexdigest(content)}"  # not the place: it must not depend on the file
        domain, lang = value.get(self.fields.domain), value.get("lang")
        return Row(
            line, data, str(name), content, domain if isinstance(domain, str) else "",
            lang if isinstance(lang, str) else "", value,
        )  # fmt: skip


def row_counts(sources: Sequence[RowSource]) -> dict[str, int]:
    """Rows of sources that were read to the end: those read, those of them that could not be used; blank lines."""
    return {
        "read": sum(source.read for source in sources),
        "unusable": sum(len(source.bad) for source in sources),
        "blank_lines": sum(source.blank for source in sources),
    }


def empty_files(sources: Sequence[RowSource]) -> list[str]:
    """Files without any row, of sources that were read to the end."""
    return [str(source.path) for source in sources if not source.read]


class RowWriter:
    """Writes JSON Lines with Zstandard into folder `place`; at `path`, whole, after `commit`."""

    def __init__(self, path: Path, place: Path) -> None:
        self.path, self._temp = path, temp_path(place / path.name)
        self.rows = 0
        self._file = open(self._temp, "xb")  # noqa: SIM115 - closed below
        self._stream = zstandard.ZstdCompressor(level=3).stream_writer(self._file, closefd=False)

    def write(self, data: bytes) -> None:
        """One row, as bytes without a newline."""
        self.rows += 1
        with disk_errors(self.path):
            self._stream.write(data + b"\n")

    def write_object(self, value: dict[str, Any]) -> None:
        self.write(dump(value))

    def commit(self) -> None:
        with disk_errors(self.path):
            self._stream.close()
            self._file.close()
            fsync_file(self._temp)
            self._temp.replace(self.path)

    def __enter__(self) -> RowWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._file.closed:
            with suppress(OSError, zstandard.ZstdError):
                self._stream.close()
            with suppress(OSError):
                self._file.close()
        self._temp.unlink(missing_ok=True)


def dump(value: dict[str, Any]) -> bytes:
    """One row as JSON; lone surrogates as escapes, huge integers whole."""
    try:
        return orjson.dumps(value)
    except (TypeError, orjson.JSONEncodeError):
        import json

        return json.dumps(value, ensure_ascii=True, separators=(",", ":")).encode()


def quarantine_bytes(bad: Iterable[BadRow]) -> bytes:
    """All bad rows as JSON Lines."""
    return b"".join(
        canonical_json(
            {"file": row.file, "line": row.line, "offset": row.offset, "reason": row.reason, "detail": row.detail}
        )
        + b"\n"
        for row in bad
    )
