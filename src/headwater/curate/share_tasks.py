"""What workers do where several read one file: each keeps the documents of its share in a scratch file, then each
writes some of the document shards.

    facts = read_share(ShareTask(task, 0, 2)); ...; write_joined(JoinTask(plan, 0, texts, pieces, out))
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headwater.core.documents import ROW_GROUP_DOCUMENTS, SCHEMA, Document, document_columns
from headwater.core.files import disk_errors
from headwater.core.shards import ShardFolder
from headwater.curate.collect import (
    CollectTask,
    Counts,
    collect_shard,
    documents_of,
    part_name,
    shard_name,
    shard_order,
)
from headwater.curate.readers.share import Share
from headwater.curate.sources import ShardPlan
from headwater.curate.writing import TableWriter

BLOCK_BYTES = 4 << 20
"""Most bytes of a stream that one worker reads before it passes over those of the others; a block's texts are in
memory."""


@dataclass(frozen=True, slots=True)
class ShareTask:
    """Share `number` of `of` of the one file of a plan."""

    collect: CollectTask
    number: int
    of: int

    def name(self, suffix: str) -> str:
        """The scratch file of this share; the quarantine (`jsonl`) is written last, so it says that all is done."""
        return f"{part_name(self.collect.plan).removesuffix('.jsonl')}.{self.number}-of-{self.of}.{suffix}"

    @property
    def texts(self) -> Path:
        """Its documents, in record batches."""
        return self.collect.out.dir / self.name("arrow")


@dataclass(frozen=True, slots=True)
class Piece:
    """Documents `start` to `end` of a record batch of a share."""

    share: int
    batch: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class JoinTask:
    """Write document shard `number` of a plan from pieces of the shares' scratch files."""

    plan: ShardPlan
    number: int
    texts: tuple[Path, ...]
    pieces: tuple[Piece, ...]
    out: ShardFolder


def carry_out(item: CollectTask | ShareTask) -> dict[str, Any]:
    """A plan, or a share of one."""
    return read_share(item) if isinstance(item, ShareTask) else collect_shard(item)


def read_share(task: ShareTask) -> dict[str, Any]:
    """Read a share and write its documents and quarantine to scratch files, unless that was done. Returns its counts;
    which records were met (`asked`), the same for all shares; and the batches of its documents (`blocks`)."""
    plan, out = task.collect.plan, task.collect.out
    part, name = task.name("jsonl"), task.name("arrow")
    if (facts := out.done(part)) is not None and out.done(name) is not None:
        return facts
    counts = Counts()
    share = Share(task.number, task.of, max(1, min(BLOCK_BYTES, task.collect.shard_bytes // 4)))
    quarantine, texts = out.temp(part), out.temp(name)
    try:
        with disk_errors(texts), open(quarantine, "wb") as rows, Scratch(texts) as scratch:

            def reject(line: bytes) -> None:
                rows.write(b"%d\t" % share.block + line)

            for document in documents_of(plan.files[0], plan, counts, reject, share):
                scratch.add(share.block, document)
        out.finish(name, texts)
        asked = [share.asked, share.last]
        return out.finish(part, quarantine, asked=asked, blocks=scratch.blocks, **counts.facts(plan.source.name))
    finally:
        quarantine.unlink(missing_ok=True)
        texts.unlink(missing_ok=True)


class Scratch:
    """Documents in record batches, each of one block and, for memory's sake, no more than fit in a row group. `blocks`
    lists block, documents and bytes of text of each batch."""

    def __init__(self, path: Path) -> None:
        self.blocks: list[tuple[int, int, int]] = []
        self._rows: list[Document] = []
        self._block = 0
        self._writer = pa.ipc.new_file(path, SCHEMA, options=pa.ipc.IpcWriteOptions(compression="lz4"))

    def add(self, block: int, document: Document) -> None:
        if block != self._block or len(self._rows) >= ROW_GROUP_DOCUMENTS:
            self._flush()
            self._block = block
        self._rows.append(document)

    def _flush(self) -> None:
        if self._rows:
            batch = pa.RecordBatch.from_pydict(document_columns(self._rows), schema=SCHEMA)
            self._writer.write_batch(batch)
            self.blocks.append((self._block, batch.num_rows, int(text_sizes(batch).sum())))
            self._rows.clear()

    def __enter__(self) -> Scratch:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is None:
            self._flush()
        self._writer.close()


def text_sizes(batch: pa.RecordBatch) -> NDArray[np.int64]:
    """Bytes of each text, int64 [documents]."""
    column = batch.column("text")
    offsets = np.frombuffer(column.buffers()[1], np.int64, len(column) + 1, 8 * column.offset)
    return offsets[1:] - offsets[:-1]


def kept_sizes(texts: Path, batch: int) -> NDArray[np.int64]:
    """Bytes of each text of a record batch in a scratch file, int64 [documents]."""
    with pa.memory_map(str(texts)) as file:
        return text_sizes(pa.ipc.open_file(file).get_batch(batch))


def write_joined(task: JoinTask) -> dict[str, Any]:
    """Write one document shard, unless that was done. Returns its facts."""
    name = shard_name(task.plan, task.number)
    if (facts := task.out.done(name)) is not None:
        return facts
    temp = task.out.temp(name)
    try:
        with ExitStack() as stack, disk_errors(temp):
            maps = [stack.enter_context(pa.memory_map(str(path))) for path in task.texts]
            shares = [pa.ipc.open_file(file) for file in maps]
            writer = TableWriter(temp)
            for piece in task.pieces:
                batch = shares[piece.share].get_batch(piece.batch).slice(piece.start, piece.end - piece.start)
                writer.add(pa.Table.from_batches([batch]), text_sizes(batch))
            writer.close()
        order = shard_order(task.plan, task.number)
        return task.out.finish(name, temp, documents=writer.documents, order=order)
    finally:
        temp.unlink(missing_ok=True)
