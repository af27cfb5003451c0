"""A small stage in a process of its own, for tests that kill it.

Writes `SHARDS` shards in three ways (`shard`, `write`, and by worker processes with `finish`), a scratch file, a
shard that is removed before the end, and commits.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

from headwater.core.artifacts import Artifact, ArtifactStore, ArtifactWriter, ShardFolder, fingerprint
from headwater.core.executor import make_executor

SHARDS = 24
PAUSE_SECONDS = 0.02
IDENTITY = {"shards": SHARDS, "rate": 0.1, "名": "源"}
INPUTS = {"raw:web": "ab" * 16}
KEY = fingerprint("staged", 1, IDENTITY, INPUTS)


def content(number: int) -> bytes:
    return random.Random(number).randbytes(20_000 + number)


def work(job: tuple[ShardFolder, int, bool]) -> int:
    """Write one shard, in pieces with pauses so that a kill finds it half done."""
    out, number, slow = job
    name, data = f"part-{number % 3}/{number:05d}.bin", content(number)
    if out.done(name) is not None:
        return 0
    if number % 2:
        out.write(name, data, number=number)
        return 1
    temp = out.temp(name)
    with open(temp, "wb") as file:
        for start in range(0, len(data), 5000):
            file.write(data[start : start + 5000])
            file.flush()
            time.sleep(PAUSE_SECONDS if slow else 0)
    out.finish(name, temp, number=number)
    return 1


def build(out: ArtifactWriter, kind: str, slow: bool = True) -> dict[str, int]:
    (out.scratch / "notes.txt").write_text("working file")
    out.write("kept-for-resume.bin", b"x" * 1000)
    with make_executor("process" if kind == "process" else "inline", 2) as executor:
        for _ in executor.map(work, [(ShardFolder(out.dir), number, slow) for number in range(SHARDS)]):
            pass
    with out.shard("summary.txt", lines=1) as path:
        path.write_text("done\n")
    out.remove("kept-for-resume.bin")
    return {"shards": SHARDS, "bytes": sum(len(content(number)) for number in range(SHARDS))}


def run(workspace: Path, kind: str, slow: bool = True) -> Artifact:
    store = ArtifactStore(workspace)
    artifact = store.find("staged", KEY)
    if artifact is None:
        with store.writer("staged", KEY, version=1, identity=IDENTITY, inputs=INPUTS) as out:
            artifact = out.commit(build(out, kind, slow))
    return artifact
