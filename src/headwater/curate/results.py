"""The folder that a verb on files writes: whether a result is there whole, and what it was made from.

A report names its verb, a fingerprint of all that decides the result, the content of every input, and the content of
the files beside it. So the same call again changes nothing, another result is not overwritten, and what was damaged or
changed since is noticed.

    key = fingerprint("dedup", VERSION, settings.to_json(), contents(files))
    if (report := finished(out, key, overwrite=False)) is not None: return report
    ...
    return write_report(out, key, report)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headwater.core.errors import InputError, UserError
from headwater.core.files import atomic_write
from headwater.core.jsonl import parse_json, pretty_json
from headwater.core.rawinput import UnreadableError, hash_file
from headwater.core.shards import MANIFEST
from headwater.curate.dedup.rows import KEPT, REMOVED, REPORT, BadRow, RowWriter, quarantine_bytes
from headwater.curate.records import QUARANTINE

NAMES = (KEPT, REMOVED, REPORT)
_AGAIN = "make it again with --force, or choose another --out"


def contents(paths: Iterable[Path | str]) -> dict[str, str]:
    """Path, as given -> hash of the content, 32 hex digits. Raises InputError for what is no file that can be read."""
    found = {}
    for path in paths:
        try:
            found[str(path)] = hash_file(Path(path))
        except UnreadableError as error:
            mend = "give files, or folders of them; what comes through a pipe must be written into a file first"
            raise InputError(error.what, where=str(path), mend=mend) from error
    return found


def finished(out: Path, key: str, *, overwrite: bool, begun: bool = False) -> dict[str, Any] | None:
    """The report of `out` if it holds the result of this fingerprint, whole; None if there is room for one.

    `overwrite` makes room whatever is there; `begun` says that a run of this fingerprint was killed here. Raises
    UserError for another result, InputError for one that is damaged.
    """
    found = [name for name in NAMES if (out / name).exists()]
    report = _report(out) if REPORT in found else {}
    if report is not None and report.get("fingerprint") == key:
        if not (bad := _damaged(out, report)):
            return report
        what = f"{bad} is not what the same call wrote here before: it is gone, damaged or has been changed"
    elif report is None:
        what = f"{REPORT} is damaged: nobody can say what result this is"
    else:
        what = ""
    if not found or overwrite or begun:
        return None
    if what:
        raise InputError(what, where=str(out), mend=_AGAIN)
    raise UserError(
        f"the folder holds another result ({', '.join(found)})",
        where=str(out),
        mend="choose another --out, or overwrite it with --force",
    )


def _report(folder: Path) -> dict[str, Any] | None:
    """The report in a folder; None if it cannot be read."""
    try:
        report = parse_json((folder / REPORT).read_bytes())
    except (OSError, ValueError):
        return None
    return report if isinstance(report, dict) else None


def _damaged(out: Path, report: Mapping[str, Any]) -> str:
    """The name of a file that is not what the report says; "" if all are."""
    for name, digest in report["files"].items():
        try:
            if hash_file(out / name) != digest:
                return str(name)
        except InputError:
            return str(name)
    return ""


def commit(kept: RowWriter, removed: RowWriter, bad: Sequence[BadRow], out: Path) -> None:
    """Put a run's files in place of older ones, whose report goes first: from here on it would not be true."""
    (out / REPORT).unlink(missing_ok=True)
    kept.commit()
    removed.commit()
    if bad:
        atomic_write(out / QUARANTINE, quarantine_bytes(bad))
    else:
        (out / QUARANTINE).unlink(missing_ok=True)


def write_report(out: Path, key: str, report: Mapping[str, Any]) -> dict[str, Any]:
    """Write the report as the last of a run's files and return it as it was written."""
    beside = [name for name in (KEPT, REMOVED, QUARANTINE) if (out / name).exists()]
    whole = {**report, "fingerprint": key, "files": {name: hash_file(out / name) for name in beside}}
    data = pretty_json(whole)
    atomic_write(out / REPORT, data)
    found: dict[str, Any] = parse_json(data)
    return found


def is_file_result(folder: Path) -> bool:
    """Whether a folder looks like what a verb on files wrote; an artifact has a report too, and a manifest."""
    return (folder / REPORT).is_file() and not (folder / MANIFEST).exists()


def file_report(folder: Path) -> dict[str, Any]:
    """The report of a verb on files. Raises InputError if the folder has none, or one that cannot be read."""
    if is_file_result(folder):
        report = _report(folder)
        if report is None or "verb" not in report or "files" not in report:
            raise InputError(
                f"{REPORT} is damaged, or does not say what the result was made from",
                where=str(folder),
                mend="give a folder that a verb on files wrote, or run the verb again",
            )
        for name in (KEPT, REMOVED):
            if not (folder / name).is_file():
                raise InputError(f"{name} is not there", where=str(folder), mend="run the verb again")
        return report
    raise neither(folder)


def neither(folder: Path) -> InputError:
    """What is said of a folder that is no result, or is not there."""
    if not folder.exists():
        return InputError("no such file or folder", where=str(folder), mend="check the path")
    return InputError(
        "this is neither a corpus nor what a verb on files wrote",
        where=str(folder),
        mend=f"give a recipe, WORKSPACE/curate/..., or a folder with {KEPT}, {REMOVED} and {REPORT}",
    )
