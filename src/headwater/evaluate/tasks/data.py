"""Where a task's rows come from: a folder of files in their original formats, or the Hugging Face hub when online.

rows, source = load_rows(("arc_challenge_test.jsonl", "ARC-Challenge-Test.jsonl"), folder=Path("data"), hub=None)
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwater.core.errors import InputError, UserError
from headwater.core.files import sha256_file
from headwater.evaluate.tasks.spec import HubSource


@dataclass(frozen=True, slots=True)
class Malformed:
    """A line that is no row; it is set aside with this reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows in file order, and where they are from (`sha256` of the file's bytes, None from the hub)."""

    rows: list[Any]
    source: str
    sha256: str | None


def load_rows(names: Sequence[str], *, folder: Path | None, hub: HubSource | None, task: str) -> Rows:
    """Rows from `folder` if it has one of the files, else, without a folder, from the hub.

    InputError if there is neither, or a file cannot be read at all.
    """
    if folder is not None:
        path = _find(folder, names)
        if path is None:
            raise InputError(
                f"task {task} has no data here: none of {', '.join(names)}",
                where=str(folder),
                mend="put one of these files there, or leave --data out to use the Hugging Face hub",
            )
        return Rows(read_file(path), str(path), sha256_file(path))
    if hub is None:
        raise InputError(f"task {task} has no data set on the hub", mend=f"give a folder with {names[0]} by --data")
    return Rows(_from_hub(hub, task), f"hub:{hub.path}" + (f"/{hub.name}" if hub.name else "") + f":{hub.split}", None)


def _find(folder: Path, names: Sequence[str]) -> Path | None:
    if not folder.is_dir():
        raise InputError("no such folder of evaluation data", where=str(folder))
    for name in names:
        found = sorted(path for path in folder.rglob(name) if path.is_file())
        if found:
            return found[0]
    return None


def read_file(path: Path) -> list[Any]:
    """Rows of a .jsonl, .json, .csv, .tsv or .txt file, possibly .gz. A line that is no JSON is
    `Malformed`."""
    return [row for _, row in read_numbered(path)]


def read_numbered(path: Path) -> list[tuple[int, Any]]:
    """The same with numbers from 1: lines of JSON Lines, rows of other files."""
    try:
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
        text = data.decode("utf-8-sig")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", where=str(path), mend="fetch the file again") from error
    kind = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    if kind == ".txt":
        return [(1, {"text": text})]
    if kind in (".csv", ".tsv"):
        return [*enumerate(csv.DictReader(io.StringIO(text), delimiter="\t" if kind == ".tsv" else ","), 1)]
    if kind == ".json":
        try:
            whole = json.loads(text)
        except json.JSONDecodeError as error:
            raise InputError(f"is no JSON: {error}", where=str(path), mend="fetch the file again") from error
        rows = (
            next((whole[name] for name in ("data", "Data") if name in whole), whole)
            if isinstance(whole, dict)
            else whole
        )
        if isinstance(rows, dict):
            rows = [rows]  # a benchmark in one object; its reader knows the parts
        if not isinstance(rows, list):
            raise InputError("holds neither a list of rows nor an object with a list `data`", where=str(path))
        return [*enumerate(rows, 1)]
    # Not splitlines: texts hold U+2028 and others of its kind, which end no line of JSON Lines.
    return [(number, _line(line)) for number, line in enumerate(text.split("\n"), 1) if line.strip()]


def _line(line: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        return Malformed(f"is no JSON: {error}")


def _from_hub(hub: HubSource, task: str) -> list[Any]:
    try:
        import datasets
    except ImportError as error:
        raise UserError(
            f"task {task} is read from the Hugging Face hub by the package datasets, which is not installed",
            mend="pip install datasets, or give a folder of data by --data",
        ) from error
    try:
        return list(datasets.load_dataset(hub.path, hub.name, split=hub.split))
    except Exception as error:  # the hub's client has no one error of its own
        raise InputError(
            f"{hub.path} cannot be had from the Hugging Face hub: {type(error).__name__}: {error}",
            where=f"task {task}",
            mend="give a folder with the data by --data",
        ) from error
