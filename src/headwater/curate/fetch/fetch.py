"""Brings the files of sources with a `fetch:` block here, and keeps a receipt of where each came from, and when.

In: `SourceConfig`s. Out: `FOLDER/SOURCE/HOST/PATH` and `FOLDER/SOURCE/.receipt/receipt.json`: address, name, bytes,
SHA-256 and time of each file, the licence, and what could not be had with the reason. Files that have come are kept;
a killed fetch goes on in the middle of a file.

    receipt = fetch_source(source, Path("corpora"))
    receipt.files[0].retrieved
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headwater.core.artifacts import fingerprint
from headwater.core.config import identity
from headwater.core.errors import InputError, UserError
from headwater.core.files import atomic_write, sha256_bytes
from headwater.core.jsonl import JsonlLog, parse_json, pretty_json, read_jsonl
from headwater.core.locks import FolderLock
from headwater.core.progress import SILENT, Reporter
from headwater.curate.config import CollectConfig, SourceConfig
from headwater.curate.fetch.addresses import LIST_BYTES, Wanted, is_http, list_path, local_name, parse_list, wanted
from headwater.curate.fetch.config import FetchConfig
from headwater.curate.fetch.remote import bring, expand
from headwater.curate.fetch.transfer import Pace, TransferError, Transferred, digests, transfer

RECEIPT = ".receipt"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Fetched:
    """One file that came: `name` below the source's folder, `retrieved` in UTC."""

    address: str
    name: str
    size: int
    sha256: str
    retrieved: str
    etag: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """One that did not come. `reason` is also in the file `.receipt/failed/NUMBER.txt`, which stands for it."""

    address: str
    name: str
    reason: str
    note: str


@dataclass(frozen=True)
class Receipt:
    """What a source's fetch came to."""

    key: str
    folder: Path
    license: str
    files: tuple[Fetched, ...]
    failed: tuple[Failed, ...]

    @property
    def retrieved(self) -> tuple[str, str]:
        """When the first and the last file came; "" if none did."""
        times = sorted(file.retrieved for file in self.files)
        return (times[0], times[-1]) if times else ("", "")


def source_folder(source: SourceConfig, root: Path) -> Path:
    """Where a source's fetched files lie."""
    assert source.fetch is not None
    return Path(root, Path(source.fetch.folder).expanduser(), source.name)


def fetch_key(source: SourceConfig, root: Path) -> str:
    """What a receipt is for: the block's identity and the content of its lists that are files here."""
    assert source.fetch is not None
    lists = {}
    for name in source.fetch.lists:
        path = list_path(name, root)
        if path is not None:
            lists[name] = sha256_bytes(_read_list(path))
    return fingerprint("fetch", VERSION, identity(source.fetch), lists)


def _read_list(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(
            f"cannot read the list of addresses: {error.strerror}",
            where=str(path),
            mend="check fetch.lists; relative paths start from collect.root",
        ) from error


def read_receipt(source: SourceConfig, root: Path) -> Receipt | None:
    """The receipt of a finished fetch of just this, None if there is none or a file of it is gone or cut short."""
    folder = source_folder(source, root)
    try:
        row = parse_json((folder / RECEIPT / "receipt.json").read_bytes())
        receipt = Receipt(
            row["key"],
            folder,
            row["license"],
            tuple(Fetched(**file) for file in row["files"]),
            tuple(Failed(**file) for file in row["failed"]),
        )
        whole = all((folder / file.name).stat().st_size == file.size for file in receipt.files)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return receipt if whole and receipt.key == fetch_key(source, root) else None


def retrievals(config: CollectConfig) -> dict[str, Any]:
    """Of each source its licence, and when its files were retrieved (UTC): fetched, or for those that were here
    already, now, when they are read."""
    found: dict[str, Any] = {}
    for source in config.sources:
        receipt = read_receipt(source, config.folder) if source.fetch else None
        first, last = receipt.retrieved if receipt else (_time(time.time()),) * 2
        found[source.name] = {
            "license": source.license or "as each row or file says",
            "retrieved_first": first,
            "retrieved_last": last,
            "receipt": str(receipt.folder / RECEIPT / "receipt.json") if receipt else "",
        }
    return found


def unfetched(config: CollectConfig) -> list[SourceConfig]:
    """Sources whose files have to be fetched before anything can be read."""
    return [source for source in config.sources if source.fetch and read_receipt(source, config.folder) is None]


def fetch_missing(config: CollectConfig, reporter: Reporter = SILENT, *, again: bool = False) -> list[Receipt]:
    """Fetch what is not here yet, source by source; with `again` also what failed the last time."""
    made = []
    for source in config.sources:
        if source.fetch is None:
            continue
        receipt = read_receipt(source, config.folder)
        if receipt is None or (again and receipt.failed):
            receipt = fetch_source(source, config.folder, reporter)
        made.append(receipt)
    return made


def fetch_source(source: SourceConfig, root: Path, reporter: Reporter = SILENT) -> Receipt:
    """Fetch one source and write its receipt.

    Raises InputError for a list that cannot be read or a share of failures above `max_failed_ratio`, LockedError while
    another process fetches the same.
    """
    config = source.fetch
    assert config is not None
    folder = source_folder(source, root)
    (folder / RECEIPT / "failed").mkdir(parents=True, exist_ok=True)
    with FolderLock(folder):
        pace = Pace(config.requests_per_second)
        todo = wanted(list(_addresses(config, root, folder, pace)))
        if not todo:
            raise InputError(f"nothing to fetch for source {source.name!r}", mend="its lists are empty")
        known = _known(folder)
        reporter.decide(
            f"source {source.name}: {len(todo):,} files to have, {len(known):,} here from before",
            why=f"{config.connections} at once, {config.requests_per_second:g} requests a second to a host",
        )
        files, failed = _fetch_all(todo, known, folder, config, pace, reporter)
        for failure in failed:
            atomic_write(folder / failure.note, failure.reason.encode())
        receipt = Receipt(fetch_key(source, root), folder, source.license, files, failed)
        if len(failed) > config.max_failed_ratio * len(todo):
            raise InputError(
                f"{len(failed):,} of {len(todo):,} files of source {source.name!r} could not be fetched, the first: "
                f"{failed[0].address}: {failed[0].reason}",
                where="fetch",
                mend="run again to go on, or raise fetch.max_failed_ratio",
            )
        if failed:
            reporter.warn(
                f"source {source.name}: {len(failed):,} of {len(todo):,} files could not be fetched, the first: "
                f"{failed[0].address}: {failed[0].reason}"
            )
        atomic_write(
            folder / RECEIPT / "receipt.json",
            pretty_json(
                {
                    "key": receipt.key,
                    "license": source.license,
                    "files": [asdict(file) for file in files],
                    "failed": [asdict(failure) for failure in failed],
                }
            ),
        )
    return receipt


def _addresses(config: FetchConfig, root: Path, folder: Path, pace: Pace) -> Iterator[tuple[str, str]]:
    for address in config.addresses:
        if is_http(address):
            yield address, ""
        else:
            yield from ((found, "") for found in expand(address, config.options))
    for name in config.lists:
        path = list_path(name, root)
        if path is None:
            path = folder / RECEIPT / "lists" / local_name(name)
            try:
                _get(Wanted(name, ""), path, config, pace)
            except TransferError as error:
                raise InputError(
                    f"cannot fetch the list: {error.what}", where=name, mend="check fetch.lists"
                ) from error
        data = _read_list(path)
        if len(data) > LIST_BYTES:
            raise UserError("the list is larger than a GiB", where=str(path), mend="make several lists of it")
        yield from parse_list(data, config, name)


def _get(item: Wanted, path: Path, config: FetchConfig, pace: Pace) -> Transferred:
    if is_http(item.address):
        return transfer(
            item.address,
            path,
            pace=pace,
            checksum=item.checksum,
            retries=config.retries,
            retry_seconds=config.retry_seconds,
            timeout_seconds=config.timeout_seconds,
        )
    return bring(
        item.address,
        path,
        options=config.options,
        checksum=item.checksum,
        retries=config.retries,
        retry_seconds=config.retry_seconds,
    )


def _known(folder: Path) -> dict[str, dict[str, Any]]:
    """What came in earlier tries: address -> row of the log."""
    path = folder / RECEIPT / "log.jsonl"
    rows = read_jsonl(path, lambda number, offset, reason: None) if path.exists() else ()
    return {row["address"]: row for row in rows if isinstance(row, dict) and "address" in row}


def _fetch_all(
    todo: list[Wanted],
    known: dict[str, dict[str, Any]],
    folder: Path,
    config: FetchConfig,
    pace: Pace,
    reporter: Reporter,
) -> tuple[tuple[Fetched, ...], tuple[Failed, ...]]:
    found: dict[int, Fetched] = {}
    failed: dict[int, Failed] = {}
    with (
        JsonlLog(folder / RECEIPT / "log.jsonl") as log,
        ThreadPoolExecutor(config.connections) as threads,
        reporter.progress("fetch", total=len(todo), unit="files") as bar,
    ):
        running: dict[Future[Fetched], int] = {}
        try:
            for number, item in enumerate(todo):
                while len(running) >= 2 * config.connections:  # a list of a million addresses is no million futures
                    _collect(running, todo, found, failed, log, bar)
                running[threads.submit(_one, item, known.get(item.address), folder, config, pace)] = number
            while running:
                _collect(running, todo, found, failed, log, bar)
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise
    return tuple(found[n] for n in sorted(found)), tuple(failed[n] for n in sorted(failed))


def _collect(
    running: dict[Future[Fetched], int],
    todo: list[Wanted],
    found: dict[int, Fetched],
    failed: dict[int, Failed],
    log: JsonlLog,
    bar: Any,
) -> None:
    for future in wait(running, return_when=FIRST_COMPLETED).done:
        number = running.pop(future)
        try:
            found[number] = future.result()
            log.append(asdict(found[number]))
        except TransferError as error:
            note = f"{RECEIPT}/failed/{number:06d}.txt"
            failed[number] = Failed(todo[number].address, todo[number].name, error.what, note)
        bar.advance(1)


def _one(item: Wanted, before: dict[str, Any] | None, folder: Path, config: FetchConfig, pace: Pace) -> Fetched:
    """A file that is here already, by the log and its size, or after a kill between file and log by its digest; else
    one that is fetched now."""
    path = folder / item.name
    if path.is_file():
        kind, _, digest = item.checksum.partition(":")
        size = path.stat().st_size
        if before is not None and (before["name"], before["size"]) == (item.name, size) and kind in ("", "sha256"):
            if not digest or digest == before["sha256"]:
                return Fetched(**before)
        else:
            size, sha256, own = digests(path, kind)
            if not digest or own == digest:
                return Fetched(item.address, item.name, size, sha256, _time(path.stat().st_mtime))
    came = _get(item, path, config, pace)
    return Fetched(item.address, item.name, came.size, came.sha256, _time(time.time()), came.etag)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(int(seconds), UTC).isoformat().replace("+00:00", "Z")
