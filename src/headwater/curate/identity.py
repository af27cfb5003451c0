"""What raw input is, by content: the part of the pipeline's check that must be fast when nothing changed.

with HashCache(workspace) as cache:
    raw_inputs(recipe.collect, cache)           # one string that changes with any file's content or name
    raw_digests(recipe.collect, cache)["web"]   # the same for one source
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import xxhash

from headwater.core.errors import InputError
from headwater.core.rawinput import HashCache, hash_file
from headwater.curate.config import CollectConfig, SourceConfig
from headwater.curate.sources import source_files


def raw_inputs(config: CollectConfig, cache: HashCache | None = None) -> str:
    """Hash over the content and the relative names of all raw files, 32 hex digits.

    Files are not opened while size, mtime and inode agree with `cache`. Installed distributions are known by the
    hashes in their RECORD. Raises InputError if a path matches nothing or a distribution is missing.
    """
    state = xxhash.xxh3_128()
    for name, digest in sorted(raw_digests(config, cache).items()):
        state.update(f"{name}\0{digest}\n".encode())
    return state.hexdigest()


def raw_digests(config: CollectConfig, cache: HashCache | None = None) -> dict[str, str]:
    """Source name -> hash over its files, 32 hex digits each."""
    return {source.name: _source_digest(source, config.folder, cache) for source in config.sources}


def _source_digest(source: SourceConfig, root: Path, cache: HashCache | None) -> str:
    state = xxhash.xxh3_128()
    for relative, digest in _contents(source, root, cache):
        state.update(os.fsencode(relative) + b"\0" + digest.encode() + b"\n")
    return state.hexdigest()


def _contents(source: SourceConfig, root: Path, cache: HashCache | None) -> Iterator[tuple[str, str]]:
    if source.kind == "python-environment":
        from headwater.curate.readers.python_environment import environment_lines

        for relative, path, digest in environment_lines(source):
            yield relative, digest or hash_file(Path(path), cache)
        return
    for file in source_files(source, root):
        try:
            yield file.relative, hash_file(Path(file.path), cache)
        except InputError:
            yield file.relative, "unreadable"  # it is quarantined; the hash changes once it can be read
