"""From a recipe's sources to files, and from files to the shards a worker does one at a time.

In: `SourceConfig` and the root folder. Out: `SourceFile`s in the order of their relative names, grouped into
`ShardPlan`s by bytes alone, so that neither the number of workers nor the order of a folder's listing plays a part.

    for plan in plan_shards(config): plan.name, plan.files
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from glob import escape, glob, has_magic
from pathlib import Path, PurePosixPath

import xxhash

from headwater.core.errors import InputError, RecipeError
from headwater.core.rawinput import walk_files
from headwater.curate.config import CollectConfig, SourceConfig
from headwater.curate.streams import sniff

_SUFFIX_KINDS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".txt": "text",
    ".text": "text",
    ".md": "markdown",
    ".markdown": "markdown",
    ".html": "html",
    ".htm": "html",
    ".xhtml": "html",
    ".warc": "warc",
    ".wet": "wet",
}
_COMPRESSED = (".gz", ".zst", ".zstd", ".bz2")


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A raw file, or a slice of one. `kind` is what to read it as, "auto" to find out from its content, and `named`
    says that a recipe names it itself, so that an unknown name means text. Bytes `start` to `end` hold the beginnings
    of the lines to read, or rows `start` to `end` are those to read of Parquet; `end` 0 is the whole file. `sha256` is
    what the content must have, if that is known."""

    path: str
    relative: str
    size: int
    kind: str
    named: bool = False
    start: int = 0
    end: int = 0
    license: str = ""
    sha256: str = ""
    address: str = ""
    """Where it was fetched from."""

    slice_bytes: int = 0
    """Of a slice: bytes of the file in it."""

    @property
    def bytes(self) -> int:
        """Bytes of the file to read."""
        return self.slice_bytes if self.end else self.size


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """What one document shard is made of."""

    source: SourceConfig
    number: int
    files: tuple[SourceFile, ...]

    @property
    def name(self) -> str:
        """For example `web-00003`."""
        return f"{self.source.name}-{self.number:05d}"


def is_compressed_name(name: str) -> bool:
    """Whether a file's name says that it is compressed."""
    return Path(name.lower()).suffix in _COMPRESSED


def kind_of_name(name: str) -> str:
    """What a file's name says it is, compression aside, or "auto"."""
    path = Path(name.lower())
    if is_compressed_name(name):
        path = path.with_suffix("")
    return _SUFFIX_KINDS.get(path.suffix, "auto")


def source_files(source: SourceConfig, root: Path) -> list[SourceFile]:
    """The files of a source in the order of their relative names.

    Raises InputError if a path matches nothing, or if two files have the same relative name.
    """
    if source.kind == "python-environment":
        from headwater.curate.readers.python_environment import environment_files

        return environment_files(source)
    if source.fetch is not None:
        return _fetched_files(source, root)
    found: dict[str, SourceFile] = {}
    for pattern in source.paths:
        matched = False
        for path, relative, named in _matches(pattern, root):
            matched = True
            file = _source_file(path, relative, named, source)
            if (other := found.setdefault(relative, file)).path != file.path:
                raise InputError(
                    f"two files of source {source.name!r} are both {relative!r} relative to their folders: "
                    f"{other.path} and {file.path}",
                    mend="set collect.root to a folder above both, or make them two sources",
                )
        if not matched:
            raise InputError(
                f"nothing there for source {source.name!r}",
                where=str(root / pattern),
                mend="check collect.root and the source's paths; relative paths start from collect.root",
            )
    files = sorted(found.values(), key=lambda file: os.fsencode(file.relative))
    return _with_licenses(files, root) if source.kind == "source-tree" else files


def _with_licenses(files: list[SourceFile], root: Path) -> list[SourceFile]:
    """Program files with the licence their folders say; nothing above what their relative names start from counts."""
    from headwater.curate.readers.source_licenses import TreeLicenses

    trees: dict[Path, TreeLicenses] = {}
    found = []
    for file in files:
        path = Path(file.path)
        depth = len(PurePosixPath(file.relative).parts)
        top = path.parents[min(depth, len(path.parents)) - 1] if not file.relative.startswith("..") else path.parent
        tree = trees.setdefault(top, TreeLicenses(top))
        found.append(replace(file, license=tree.of(path)))
    return found


def _fetched_files(source: SourceConfig, root: Path) -> list[SourceFile]:
    """Files of a source's receipt; one that could not be fetched is the note that says so, of kind "failed"."""
    from headwater.curate.fetch.fetch import read_receipt

    receipt = read_receipt(source, root)
    if receipt is None:
        raise InputError(
            f"the files of source {source.name!r} are not fetched yet",
            where=str(root),
            mend="headwater curate fetch RECIPE, or headwater run, which fetches first",
        )
    files = [
        SourceFile(
            str(receipt.folder / file.name),
            file.name,
            file.size,
            kind_of_name(file.name) if source.kind == "auto" else source.kind,
            named=True,
            sha256=file.sha256,
            address=file.address,
        )
        for file in receipt.files
    ]
    files += [
        SourceFile(str(receipt.folder / file.note), file.name, 0, "failed", address=file.address)
        for file in receipt.failed
    ]
    return sorted(files, key=lambda file: os.fsencode(file.relative))


def _matches(pattern: str, root: Path) -> Iterator[tuple[Path, str, bool]]:
    """Files a pattern means, their relative names, and whether the pattern names just that file."""
    full = pattern if os.path.isabs(pattern) else os.path.join(escape(str(root)), pattern)
    literal = Path(root, pattern)
    places = [str(literal)] if literal.exists() or not has_magic(pattern) else sorted(glob(full, recursive=True))
    base = root if not os.path.isabs(pattern) else _fixed_folder(literal)
    for place in map(Path, places):
        if place.is_dir():
            for path in walk_files(place):
                if not any(part.startswith(".") for part in path.relative_to(place).parts):
                    yield path, _relative(path, base), False
        elif place.exists():
            yield place, _relative(place, base), place == literal


def _fixed_folder(pattern: Path) -> Path:
    """The folder above the first part with a wildcard, or above the file itself."""
    folder = pattern
    while has_magic(str(folder)) and not folder.exists():
        folder = folder.parent
    return folder if folder.is_dir() and folder != pattern else folder.parent


def _relative(path: Path, base: Path) -> str:
    return Path(os.path.relpath(path, base)).as_posix()


def _source_file(path: Path, relative: str, named: bool, source: SourceConfig) -> SourceFile:
    kind = kind_of_name(path.name) if source.kind == "auto" else source.kind
    try:
        size = path.stat().st_size
    except OSError:  # such as a link to nowhere: reading it will say so
        size = 0
    return SourceFile(str(path), relative, size, kind, named)


def plan_shards(config: CollectConfig) -> list[ShardPlan]:
    """Every shard of a `collect` section. Raises RecipeError without sources, and what `source_files` raises."""
    if not config.sources:
        raise RecipeError(
            "there is nothing to collect", where="collect.sources", mend="name at least one source of text"
        )
    plans = []
    for source in config.sources:
        files = source_files(source, config.folder)
        if not files:
            raise InputError(
                f"source {source.name!r} has no files",
                where=str(config.folder),
                mend="its folders hold hidden files only; give other paths",
            )
        groups = _group(files, config.shard_bytes)
        plans += [ShardPlan(source, number, group) for number, group in enumerate(groups)]
    return plans


def _group(files: Iterable[SourceFile], shard_bytes: int) -> Iterator[tuple[SourceFile, ...]]:
    """Pieces of files, in order, in groups of at most `shard_bytes` where no piece alone is larger.

    Between a quarter of that and the whole, where a group ends is decided by a file's name and size: so a file more or
    less changes the groups around it and not all that follow, which were read before.
    """
    group: list[SourceFile] = []
    size = 0
    for file in files:
        for piece in _slices(file, shard_bytes):
            if group and size + piece.bytes > shard_bytes:
                yield tuple(group)
                group, size = [], 0
            group.append(piece)
            size += piece.bytes
            if size >= shard_bytes // 4 and _ends_a_group(piece, shard_bytes):
                yield tuple(group)
                group, size = [], 0
    if group:
        yield tuple(group)


def _ends_a_group(piece: SourceFile, shard_bytes: int) -> bool:
    """True for pieces about half of `shard_bytes` apart."""
    name = os.fsencode(piece.relative) + b"\0%d" % piece.start
    return xxhash.xxh3_64_intdigest(name) * shard_bytes < (piece.bytes * 2) << 64


def _slices(file: SourceFile, shard_bytes: int) -> list[SourceFile]:
    """Large files of JSON Lines that are not compressed, and of Parquet, are read in slices; all others whole: a row's
    id is its offset in the decompressed stream, which nobody knows before the stream is read up to there. Several
    workers may share such a file: see `shares`."""
    if file.size <= shard_bytes:
        return [file]
    if file.kind == "jsonl" and _is_plain(file.path):
        starts = range(0, file.size, shard_bytes)
        ends = [*starts[1:], file.size]
        return [
            replace(file, start=start, end=end, slice_bytes=end - start)
            for start, end in zip(starts, ends, strict=True)
        ]
    return _row_group_slices(file, shard_bytes) if file.kind == "parquet" else [file]


def _row_group_slices(file: SourceFile, shard_bytes: int) -> list[SourceFile]:
    """Slices of whole row groups, as many as fit in `shard_bytes`; the file whole if it cannot be opened."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file.path) as table:
            groups = [table.metadata.row_group(number) for number in range(table.num_row_groups)]
            rows = [group.num_rows for group in groups]
            sizes = [sum(group.column(n).total_compressed_size for n in range(group.num_columns)) for group in groups]
    except (pa.ArrowException, OSError, ValueError):
        return [file]  # reading it says what is wrong
    slices: list[SourceFile] = []
    first = row = size = 0
    for number, (count, length) in enumerate(zip(rows, sizes, strict=True)):
        row, size = row + count, size + length
        if number + 1 == len(rows) or size + sizes[number + 1] > shard_bytes:
            if row > first:
                slices.append(replace(file, start=first, end=row, slice_bytes=size))
            first, size = row, 0
    return slices if len(slices) > 1 else [file]


def _is_plain(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            head = file.read(8)
    except OSError:
        return False  # found again and quarantined when it is read
    return sniff(head) == "plain" and not head.startswith((b"PAR1", b"WARC/"))
