"""What a `fetch:` block means: one `Wanted` an address, in order, each with the name its file gets here.

wanted([("https://example.org/a.txt", "")])  # [Wanted("https://example.org/a.txt", "example.org/a.txt")]
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

import xxhash

from headwater.core.errors import InputError
from headwater.curate.fetch.config import FetchConfig

_UNSAFE = re.compile(r"[^\w.+@=,~-]+")
_CHECKSUM = re.compile(r"(sha256:[0-9a-f]{64}|sha1:[0-9a-f]{40}|md5:[0-9a-f]{32})", re.IGNORECASE)
_LONGEST_PART = 120
LIST_BYTES = 1 << 30
"""A list may not unpack to more."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """One file to fetch: where it is, its name below the source's folder, and `KIND:HEX` that its content must have."""

    address: str
    name: str
    checksum: str = ""


def is_http(address: str) -> bool:
    return address.startswith(("http://", "https://"))


def wanted(addresses: list[tuple[str, str]]) -> list[Wanted]:
    """(address, checksum) pairs with names, each address once. Names are made from the address alone; of two addresses
    with the same name the later gets a hash of its address."""
    found: dict[str, Wanted] = {}
    names: set[str] = set()
    folders: set[str] = set()
    for address, checksum in addresses:
        if address in found:
            continue
        name = local_name(address)
        above = {str(folder).lower() for folder in PurePosixPath(name).parents}
        if name.lower() in names | folders or above & names:  # no two files in one place, no file in a file
            name = f"{xxhash.xxh3_64_hexdigest(address.encode())}_{name.rpartition('/')[2]}"
            above = set()
        names.add(name.lower())
        folders |= above
        found[address] = Wanted(address, name, checksum.lower())
    return list(found.values())


def local_name(address: str) -> str:
    """The name of an address's file: host and path, with nothing in it that could leave the folder or hide a file."""
    parts = urlsplit(address)
    path = [part for part in unquote(parts.path).split("/") if part]
    safe = [_safe(part) for part in [parts.netloc.rpartition("@")[2] or parts.scheme, *path]]
    name = "/".join(safe)
    if parts.path.endswith("/") or not path:
        name += "/index"
    return _with_hash(name, address) if parts.query else name


def _safe(part: str) -> str:
    part = _UNSAFE.sub("_", part).strip(".") or "_"
    if len(part.encode()) <= _LONGEST_PART:
        return part
    kept = part.encode()[-60:].decode("utf-8", "ignore")  # the end: it holds the suffix
    return f"{xxhash.xxh3_64_hexdigest(part.encode())}_{kept}"


def _with_hash(name: str, address: str) -> str:
    folder, _, last = name.rpartition("/")
    return f"{folder}/{xxhash.xxh3_64_hexdigest(address.encode())[:8]}_{last}"


def parse_list(data: bytes, config: FetchConfig, where: str) -> Iterator[tuple[str, str]]:
    """(address, checksum or "") of the lines of a list. InputError, with the line, for one that is neither."""
    if data.startswith(b"\x1f\x8b"):
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"the list cannot be unpacked: {error}", where=where, mend="fetch it again") from error
    count = 0
    for number, raw in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        address, _, checksum = line.partition(" ") if " " in line else line.partition("\t")
        checksum = checksum.strip()
        if checksum and not _CHECKSUM.fullmatch(checksum):
            raise InputError(
                f"{checksum[:80]!r} is no checksum",
                where=f"{where}:{number}",
                mend="write sha256:, sha1: or md5: and the hexadecimal digits, or nothing",
            )
        if "://" not in address:
            if not config.base_url:
                raise InputError(
                    f"{address[:80]!r} is no whole address",
                    where=f"{where}:{number}",
                    mend="set fetch.base_url, for Common Crawl https://data.commoncrawl.org/",
                )
            address = config.base_url.rstrip("/") + "/" + address.lstrip("/")
        if config.first and count == config.first:
            return
        count += 1
        yield address, checksum


def list_path(name: str, root: Path) -> Path | None:
    """The local file of a list, None if it is an address."""
    return None if "://" in name else root / Path(name).expanduser()
