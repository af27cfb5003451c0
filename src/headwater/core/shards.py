"""Shards: files in a folder that are either finished, with a sidecar that says so, or not there.

The sidecar of `a/b.bin` is `.sidecars/a/b.bin.json` with `name`, `size` in bytes, `sha256`, and facts of the writer's
own. It is written last, so a shard without one is unfinished, whatever was killed when.

    shards = ShardFolder(out.dir)              # in a worker process; in a stage `out` itself is one
    shards.write("signatures/web-00000.bin", data, input_sha256=key)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any

from headwater.core.files import atomic_write, disk_errors, fsync_dir, fsync_file, sha256_file, temp_path
from headwater.core.jsonl import canonical_json, parse_json

MANIFEST = "manifest.json"
PROVENANCE = "provenance.json"
SIDECARS = ".sidecars"
_OWN_FACTS = frozenset({"name", "size", "sha256"})


def check_name(name: str) -> str:
    """A shard's name: a relative path with `/`, no `..`, no hidden part, none of the artifact's own files."""
    parts = PurePosixPath(name).parts
    if not parts or name != "/".join(parts) or name.startswith("/") or any(part.startswith(".") for part in parts):
        raise ValueError(f"{name!r} cannot name a shard: give a relative path without hidden parts")
    if name in (MANIFEST, PROVENANCE):
        raise ValueError(f"the name {name!r} is the artifact's own")
    return name


class ShardFolder:
    """Writes shards with sidecars into a folder. Small and picklable, so that a worker process can be given one.

    `ArtifactWriter` is one, with a lock and a commit; in a worker use `ShardFolder(out.dir)`.
    """

    def __init__(self, dir: Path) -> None:
        self.dir = Path(dir)

    def _sidecar(self, name: str) -> Path:
        return self.dir / SIDECARS / (check_name(name) + ".json")

    def done(self, name: str) -> dict[str, Any] | None:
        """The sidecar (`name`, `size`, `sha256`, facts) of a finished shard whose size still agrees, else None."""
        try:
            facts = parse_json(self._sidecar(name).read_bytes())
            return facts if (self.dir / name).stat().st_size == facts["size"] else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def temp(self, name: str) -> Path:
        """A fresh temporary path for the content of `name`, in the right folder and with its suffix."""
        path = self.dir / check_name(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        return temp_path(path)

    def finish(self, name: str, temp: Path, **facts: Any) -> dict[str, Any]:
        """Make a temporary file the shard `name`: fsync, hash, rename, sidecar. Returns the sidecar.

        `facts` are JSON values kept in the sidecar and the manifest (counts, input hashes); they enter the artifact's
        content, so no times or hosts.
        """
        if clash := _OWN_FACTS & facts.keys():
            raise ValueError(f"facts may not be called {', '.join(sorted(clash))}")
        path, sidecar = self.dir / check_name(name), self._sidecar(name)
        with disk_errors(path):
            fsync_file(temp)
            record = {"name": name, "size": temp.stat().st_size, "sha256": sha256_file(temp), **facts}
            data = canonical_json(record)
            sidecar.parent.mkdir(parents=True, exist_ok=True)
            sidecar.unlink(missing_ok=True)  # a shard written again is unfinished until its new sidecar is there
            temp.rename(path)
            fsync_dir(path.parent)
            atomic_write(sidecar, data)
        return parse_json(data)

    def write(self, name: str, data: bytes, **facts: Any) -> dict[str, Any]:
        """Write a whole shard from memory. Returns its sidecar."""
        with self._temporary(name) as temp:
            with disk_errors(self.dir / name):
                temp.write_bytes(data)
            return self.finish(name, temp, **facts)

    @contextmanager
    def shard(self, name: str, **facts: Any) -> Iterator[Path]:
        """Yield a temporary path to write to; on a clean exit it becomes the shard, on an error it is removed.

        For facts only known after writing use `temp` and `finish`.
        """
        with self._temporary(name) as temp:
            with disk_errors(self.dir / name):
                yield temp
            self.finish(name, temp, **facts)

    @contextmanager
    def _temporary(self, name: str) -> Iterator[Path]:
        temp = self.temp(name)
        try:
            yield temp
        finally:
            with suppress(FileNotFoundError):
                temp.unlink()

    def remove(self, name: str) -> None:
        """Take a finished shard out again, for example one kept only so that a killed stage could resume."""
        self._sidecar(name).unlink(missing_ok=True)
        (self.dir / name).unlink(missing_ok=True)

    def shards(self) -> list[str]:
        """Sorted names of finished shards."""
        root = self.dir / SIDECARS
        names = (path.relative_to(root).as_posix().removesuffix(".json") for path in root.rglob("*.json"))
        return sorted(name for name in names if not name.split("/")[-1].startswith(".") and self.done(name))
