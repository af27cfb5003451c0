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
from headwater.core.rawinput import HashCache, hash_file, walk_files
from headwater.curate.config import CollectConfig, CurateConfig, SourceConfig
from headwater.curate.sources import source_files
from headwater.curate.undo import takedown_ids

BENCHMARKS_ROOT = "benchmarks_root"
"""Key in a corpus's provenance: the absolute folder that its `decontaminate.benchmarks` were relative to, which is part
of no identity; what replays or remakes the corpus looks for them there."""


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


def curate_digests(config: CurateConfig, cache: HashCache | None = None) -> dict[str, str]:
    """Role -> hash over the files that a `curate` section names: benchmarks, ids to take down, a classifier. Roles
    without files are left out. Raises InputError for a file that is not there."""
    classifier = config.quality.classifier.path
    named = {
        "benchmarks": config.decontaminate.paths,
        "classifier": [classifier] if classifier is not None else [],
    }
    found: dict[str, str] = {}
    for role, paths in named.items():
        state = xxhash.xxh3_128()
        for path in paths:
            files = sorted(walk_files(path)) if path.is_dir() else [path]
            if not path.exists() or not files:
                raise InputError("no such file or folder" if not path.exists() else "no file in it", where=str(path))
            for file in files:
                relative = file.relative_to(path).as_posix() if path.is_dir() else file.name
                state.update(os.fsencode(relative) + b"\0" + hash_file(file, cache).encode() + b"\n")
        if paths:
            found[f"files:{role}"] = state.hexdigest()
    if ids := takedown_ids(config.takedown):
        found["files:takedown"] = xxhash.xxh3_128_hexdigest("\n".join(sorted(ids)).encode())
    return found


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
