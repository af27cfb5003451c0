"""One large file read by several workers, into the same bytes as one worker writes.

In: `CollectTask`s. A file that would keep one worker busy while others have nothing left to do is read in shares
(`readers.share`), by the tasks in `share_tasks`: each worker keeps the documents of its share in a scratch file; then
the shards are cut where one reader would have cut them, and written. How many workers there are decides nothing but
time.

    facts = collect_all(tasks, context)          # the counts of each plan
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from headwater.core.files import disk_errors, free_bytes, space
from headwater.core.stage import StageContext
from headwater.curate.collect import (
    TEXT_PER_RAW_BYTE,
    CollectTask,
    Counts,
    collect_shard,
    finish_plan,
    is_known,
    part_name,
    shard_name,
)
from headwater.curate.decisions import run_all
from headwater.curate.readers import can_be_shared
from headwater.curate.share_tasks import JoinTask, Piece, ShareTask, carry_out, kept_sizes, write_joined
from headwater.curate.sources import ShardPlan, is_compressed_name
from headwater.curate.streams import format_of

MOST_SHARES = 16
"""With more, little is gained, for all decompress the whole stream: of 16 to 18 s of work on a gigabyte of JSON Lines
in Zstandard, a worker has 3.9 as one of 4, 2.3 as one of 16 and 2.1 as one of 32."""

LINES = ("jsonl", "text", "markdown")
"""Kinds that are not worth sharing in bzip2: decompressing is more than half of the work on them, and two workers are
no faster than one. Pages of a dump cost five times as much as decompressing them."""


def collect_all(tasks: Sequence[CollectTask], context: StageContext) -> list[dict[str, Any]]:
    """Carry out all plans, large files in shares if workers would be idle otherwise. Returns each plan's counts."""
    counts = with_room(tasks, share_counts(tasks, context.executor.workers), context)
    items: list[CollectTask | ShareTask] = []
    for task, of in zip(tasks, counts, strict=True):
        items += [ShareTask(task, number, of) for number in range(of)] if of > 1 else [task]
    made = iter(run_all(carry_out, items, "collect", context))
    found = [[next(made) for _ in range(of)] for of in counts]
    joins = [_joins(task, facts) if len(facts) > 1 else [] for task, facts in zip(tasks, found, strict=True)]
    if any(joins):
        run_all(write_joined, [join for plan in joins for join in plan], "join", context)
    return [
        _finish(task, facts, [shard_name(join.plan, join.number) for join in plan]) if len(facts) > 1 else facts[0]
        for task, facts, plan in zip(tasks, found, joins, strict=True)
    ]


def share_counts(tasks: Sequence[CollectTask], workers: int) -> list[int]:
    """Into how many shares each plan is divided; 1 for what is small against all there is to do, known already, or of a
    kind that one worker reads."""
    counts = [1] * len(tasks)
    large = [at for at, task in enumerate(tasks) if workers > 1 and _is_large(task) and not is_known(task)]
    if large:
        total = sum(_work(task.plan) for task in tasks if not is_known(task))
        for at in large:
            counts[at] = min(MOST_SHARES, workers, math.ceil(_work(tasks[at].plan) * workers / total))
    return counts


def with_room(tasks: Sequence[CollectTask], counts: Sequence[int], context: StageContext) -> list[int]:
    """The counts, but 1 for a file whose documents would not fit on the disk twice, beside the scratch files of those
    before it. Says which files are shared."""
    kept, taken = list(counts), 0
    for at, task in enumerate(tasks):
        if counts[at] == 1:
            continue
        name, scratch = task.plan.files[0].relative, _work(task.plan)
        free = max(0, free_bytes(task.out.dir) - taken)
        if scratch < free:
            taken += scratch
            what, why = f"{name} is read by {counts[at]} workers", "each reads its share; the result is that of one"
        else:
            kept[at] = 1
            what = f"{name} is read by one worker"
            why = f"shares of it need about {space(scratch)} of disk for a while, and {space(free)} are free"
        context.reporter.decide(what, why=why)
    return kept


def _is_large(task: CollectTask) -> bool:
    file = task.plan.files[0]
    return (
        len(task.plan.files) == 1
        and file.size > task.shard_bytes
        and can_be_shared(file, task.plan.source)
        and not (file.kind in LINES and format_of(Path(file.path)) == "bzip2")
    )


def _work(plan: ShardPlan) -> int:
    """Bytes to read, decompressed, about."""
    return sum(file.bytes * (TEXT_PER_RAW_BYTE if is_compressed_name(file.relative) else 1) for file in plan.files)


def _agree(facts: Sequence[dict[str, Any]]) -> bool:
    """Whether all shares met the same records, as they do unless the file changed or could not be read by all."""
    return all(fact["asked"] == facts[0]["asked"] for fact in facts)


def _joins(task: CollectTask, facts: Sequence[dict[str, Any]]) -> list[JoinTask]:
    """The document shards of a plan: those that `collect_shard` would write; none of them if the shares do
    not agree."""
    if not _agree(facts):
        return []
    shares = [ShareTask(task, number, len(facts)) for number in range(len(facts))]
    blocks = sorted(
        (block, share, batch, documents, text_bytes)
        for share, fact in enumerate(facts)
        for batch, (block, documents, text_bytes) in enumerate(fact["blocks"])
    )
    texts = tuple(share.texts for share in shares)
    cut = cut_shards(
        (row[1:] for row in blocks), task.text_bytes, lambda share, batch: kept_sizes(texts[share], batch).tolist()
    )
    return [JoinTask(task.plan, number, texts, tuple(pieces), task.out) for number, pieces in enumerate(cut)]


def cut_shards(
    batches: Iterable[tuple[int, int, int, int]], limit: int, sizes: Callable[[int, int], Iterable[int]]
) -> list[list[Piece]]:
    """Pieces of each shard, which ends with the document that brings its text to `limit` bytes or more, as the last one
    does without. `batches` are (share, batch, documents, bytes of text) in order; `sizes` gives the texts' sizes of one
    in which a shard ends."""
    shards: list[list[Piece]] = [[]]
    filled = 0
    for share, batch, documents, text_bytes in batches:
        start = 0
        if filled + text_bytes < limit:
            filled += text_bytes
        else:
            for row, size in enumerate(sizes(share, batch)):
                if filled >= limit:
                    shards[-1] += [Piece(share, batch, start, row)] if row > start else []
                    shards.append([])
                    start, filled = row, 0
                filled += size
        shards[-1].append(Piece(share, batch, start, documents))
    return shards


def _finish(task: CollectTask, facts: Sequence[dict[str, Any]], names: Sequence[str]) -> dict[str, Any]:
    """Join what the shares say of a plan whose shards are called `names`, and take their scratch files away. What they
    do not agree about, which has no shards yet, is read by one worker."""
    shares = [ShareTask(task, number, len(facts)) for number in range(len(facts))]
    if not names:
        counts = collect_shard(task)
    else:
        quarantine = task.out.temp(part_name(task.plan))
        try:
            with disk_errors(quarantine), open(quarantine, "wb") as rows:
                rows.writelines(_quarantined(shares))
            counts = finish_plan(task, quarantine, names, add_up(facts))
        finally:
            quarantine.unlink(missing_ok=True)
    for share in shares:
        task.out.remove(share.name("jsonl"))
        task.out.remove(share.name("arrow"))
    return counts


def _quarantined(shares: Sequence[ShareTask]) -> Iterator[bytes]:
    """The lines of all shares' quarantines in the order of their blocks."""
    with ExitStack() as stack:
        files = [stack.enter_context(open(share.collect.out.dir / share.name("jsonl"), "rb")) for share in shares]
        for line in heapq.merge(*files, key=lambda line: int(line[: line.index(b"\t")])):
            yield line[line.index(b"\t") + 1 :]


def add_up(facts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The counts of a plan from those of its shares."""
    counts = Counts()
    for fact in facts:
        counts.add(fact)
    return counts.facts(facts[0]["source"])
