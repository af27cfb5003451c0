"""What was read from raw files, and what was decided about a document shard, kept in the workspace for the next time.

An entry is known by the content it was made from and by all that decides: a source that grows, a rule taken back, a
takedown then cost only the new files and shards, and the comparisons between documents. Entries are hard links where
the file system has them, and may be removed at any time; those not used for 30 days go by themselves.

    cache = ShardCache(workspace / "curate" / ".shards", key)
    if not cache.restore(out, names): ...; cache.keep(out, names)
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwater.core.artifacts import fingerprint
from headwater.core.config import identity
from headwater.core.files import TEMP_PREFIX, atomic_write, disk_errors
from headwater.core.jsonl import canonical_json, parse_json
from headwater.core.shards import ShardFolder
from headwater.curate.config import CurateConfig

FACTS = "facts.json"
KEPT_SECONDS = 30 * 24 * 3600
_OWN = ("name", "size", "sha256")


def shard_key(config: CurateConfig, sha256: str, files: Mapping[str, str], versions: Mapping[str, Any]) -> str:
    """What decides about the documents of a shard alone: its content, the settings that look at one document, the files
    they name, and the versions of rules."""
    parts = {
        "clean": identity(config.clean),
        "language": identity(config.language),
        "quality": identity(config.quality),
        "decontaminate": identity(config.decontaminate),
        "dedup": {
            name: value
            for name, value in identity(config.dedup).items()
            if name not in ("threshold", "measure", "representatives", "ngram", "passage_units", "passages")
        },
        "near": config.split.separate and config.split.validation + config.split.test > 0,
        "canaries": config.canaries.documents,
        "versions": dict(versions),
    }
    return fingerprint("decide", 1, parts, {"shard": sha256, **files})


@dataclass(frozen=True, slots=True)
class ShardCache:
    """One entry, a folder `root/key`."""

    root: Path
    key: str

    def facts(self) -> dict[str, dict[str, Any]] | None:
        """The sidecar of each role, None if there is no whole entry."""
        folder = self.root / self.key
        try:
            facts: dict[str, dict[str, Any]] = parse_json((folder / FACTS).read_bytes())
            whole = all((folder / role).stat().st_size == fact["size"] for role, fact in facts.items())
            return facts if whole else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def restore(
        self, out: ShardFolder, names: Mapping[str, str], other: Mapping[str, Mapping[str, Any]] | None = None
    ) -> dict[str, dict[str, Any]] | None:
        """Put the entry's files into `out`: role -> name there, with `other` facts of a role in place of its own.
        Returns the sidecar of each role, None if there is no whole entry."""
        folder = self.root / self.key
        facts = self.facts()
        if facts is None or set(facts) != set(names):
            return None
        with suppress(OSError):
            os.utime(folder)
        made = {}
        for role, name in names.items():
            temp = out.temp(name)
            try:
                with disk_errors(temp):
                    _link(folder / role, temp)
                own = {key: value for key, value in facts[role].items() if key not in _OWN}
                own |= (other or {}).get(role, {})
                made[role] = out.finish(name, temp, **own)
            except FileNotFoundError:  # another process cleared it away
                return None
            finally:
                temp.unlink(missing_ok=True)
            if made[role]["sha256"] != facts[role]["sha256"]:
                for done in list(made):
                    out.remove(names[done])
                shutil.rmtree(folder, ignore_errors=True)
                return None
        return made

    def keep(self, out: ShardFolder, names: Mapping[str, str]) -> None:
        """Make an entry of files that are finished in `out`; a full disk is no reason to stop."""
        folder = self.root / self.key
        temp = self.root / f"{TEMP_PREFIX}{self.key}-{os.getpid()}"
        with suppress(OSError):
            shutil.rmtree(temp, ignore_errors=True)
            temp.mkdir(parents=True)
            for role, name in names.items():
                _link(out.dir / name, temp / role)
            atomic_write(temp / FACTS, canonical_json({role: out.done(name) for role, name in names.items()}))
            shutil.rmtree(folder, ignore_errors=True)
            temp.rename(folder)
        shutil.rmtree(temp, ignore_errors=True)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(source, target)


def clear_old(root: Path) -> None:
    """Remove entries that were not used for long, and what killed processes left."""
    if root.is_dir():
        for entry in root.iterdir():
            with suppress(OSError):
                age = time.time() - entry.stat().st_mtime
                if age > (3600 if entry.name.startswith(TEMP_PREFIX) else KEPT_SECONDS):
                    shutil.rmtree(entry)
