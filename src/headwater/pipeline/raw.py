"""Raw inputs by content: what the first stage's fingerprint is made of.

In: the `collect` section. Out: role -> hash of all names and contents of a source. Files that stayed the same since the
last look (size, mtime, inode) are not read again; installed packages are known by their RECORD hashes.

    with HashCache(workspace) as cache: raw_inputs(recipe.collect, cache)       # {"raw:web": "0f3a..."}
"""

from __future__ import annotations

import os
from pathlib import Path

import xxhash

from headwater.core.errors import InputError
from headwater.core.rawinput import HashCache, hash_file
from headwater.curate.config import CollectConfig
from headwater.curate.sources import SourceFile, source_files


def raw_inputs(config: CollectConfig, cache: HashCache) -> dict[str, str]:
    """One digest a source, over the relative names and contents of its files in order.

    A file that cannot be read enters as unreadable, so the digest changes once it can be. Raises InputError for a path
    that matches nothing.
    """
    root = Path(config.root)
    return {f"raw:{source.name}": _digest(source_files(source, root), cache) for source in config.sources}


def _digest(files: list[SourceFile], cache: HashCache) -> str:
    state = xxhash.xxh3_128()
    for file in files:
        state.update(os.fsencode(file.relative) + b"\x00" + _content(file, cache).encode() + b"\n")
    return state.hexdigest()


def _content(file: SourceFile, cache: HashCache) -> str:
    if file.sha256:
        return file.sha256
    try:
        return hash_file(Path(file.path), cache)
    except InputError:
        return "unreadable"
