"""A pipeline step, event by event: which rank works on which micro-batch when.

The closed forms in `schedules.py` are checked against this; the report draws from it. In: micro-batches, ranks,
chunks and times of a chunk (forward, input gradient, weight gradient, hop between ranks). Out: every interval of work.

    simulate("1f1b", ranks=4, micro_batches=8, forward=1, dgrad=1, wgrad=1).makespan   # (8 + 3) * 3 = 33
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from headwater.core.errors import InputError


@dataclass(frozen=True)
class Work:
    """One interval: `kind` is F (forward), B (input gradient; with W when not split) or W (weight gradient)."""

    rank: int
    chunk: int
    micro_batch: int
    kind: str
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """All work of a step, its length, and the idle share of the mean rank."""

    work: tuple[Work, ...]
    makespan: float
    idle_share: float
    peak_in_flight: tuple[int, ...]  # chunks' activations held at once, by rank


EVENT_SCHEDULES = ("gpipe", "1f1b", "interleaved_1f1b", "zb_h1", "zb_1p")
Key = tuple[str, int, int]  # kind, global stage, micro-batch


def _order_1f1b(rank: int, ranks: int, m: int) -> list[Key]:
    warm = min(ranks - rank - 1, m)
    order: list[Key] = [("F", rank, i) for i in range(warm)]
    for i in range(m - warm):
        order += [("F", rank, warm + i), ("B", rank, i)]
    return order + [("B", rank, i) for i in range(m - warm, m)]


def _order_gpipe(rank: int, m: int) -> list[Key]:
    return [("F", rank, i) for i in range(m)] + [("B", rank, i) for i in range(m)]


def _order_interleaved(rank: int, ranks: int, chunks: int, m: int) -> list[Key]:
    """Megatron-LM's order: micro-batches in groups of `ranks`, each group through all chunks in turn."""
    total = m * chunks

    def nth(k: int, forward: bool) -> tuple[int, int]:
        group, inside = divmod(k, ranks * chunks)
        chunk, offset = divmod(inside, ranks)
        return (chunk if forward else chunks - 1 - chunk), group * ranks + offset

    warm = total if m == ranks else min((ranks - rank - 1) * 2 + (chunks - 1) * ranks, total)
    order: list[Key] = []
    for k in range(warm):
        chunk, batch = nth(k, True)
        order.append(("F", chunk * ranks + rank, batch))
    for k in range(total - warm):
        chunk, batch = nth(warm + k, True)
        order.append(("F", chunk * ranks + rank, batch))
        chunk, batch = nth(k, False)
        order.append(("B", chunk * ranks + rank, batch))
    for k in range(total - warm, total):
        chunk, batch = nth(k, False)
        order.append(("B", chunk * ranks + rank, batch))
    return order


def _order_zb_h1(rank: int, ranks: int, m: int) -> list[Key]:
    """1F1B with the weight gradient put off: no more in flight than 1F1B's first rank (Qi 2024, ZB-H1)."""
    order: list[Key] = []
    waiting: deque[int] = deque()
    for kind, stage, batch in _order_1f1b(rank, ranks, m):
        order.append((kind, stage, batch))
        if kind == "B":
            waiting.append(batch)
            # Rank r may let r weight gradients wait: what the later ranks hold less of activations.
            if len(waiting) > rank:
                order.append(("W", stage, waiting.popleft()))
    return order + [("W", rank, batch) for batch in waiting]


def orders(schedule: str, ranks: int, chunks: int, m: int) -> tuple[list[list[Key]], bool]:
    """Each rank's order of work, and whether weight gradients are apart from input gradients."""
    if schedule == "gpipe":
        return [_order_gpipe(r, m) for r in range(ranks)], False
    if schedule == "1f1b":
        return [_order_1f1b(r, ranks, m) for r in range(ranks)], False
    if schedule == "interleaved_1f1b":
        if m % ranks:
            raise InputError(
                f"{m} micro-batches over {ranks} ranks", where="interleaved_1f1b", mend="a multiple of the ranks"
            )
        return [_order_interleaved(r, ranks, chunks, m) for r in range(ranks)], False
    if schedule in ("zb_h1", "zb_1p"):
        return [_order_zb_h1(r, ranks, m) for r in range(ranks)], True
    raise InputError(
        f"no event order for {schedule!r}", where="schedule", mend=f"one of {', '.join(EVENT_SCHEDULES)}, or simulate_v"
    )


def simulate(
    schedule: str,
    *,
    ranks: int,
    micro_batches: int,
    forward: float,
    dgrad: float,
    wgrad: float,
    chunks: int = 1,
    hop: float = 0.0,
) -> Timeline:
    """Run the schedule; times are of one chunk and micro-batch. Raises InputError for an impossible order."""
    if schedule != "interleaved_1f1b":
        chunks = 1
    plan, split = orders(schedule, ranks, chunks, micro_batches)
    stages = ranks * chunks
    done: dict[Key, float] = {}
    clock = [0.0] * ranks
    position = [0] * ranks
    work: list[Work] = []
    cost = {"F": forward, "B": dgrad if split else dgrad + wgrad, "W": wgrad}

    def ready(key: Key) -> float | None:
        kind, stage, batch = key
        if kind == "W":
            return done.get(("B", stage, batch))
        if kind == "F":
            return 0.0 if stage == 0 else _after(done.get(("F", stage - 1, batch)), hop)
        own = done.get(("F", stage, batch))
        if stage == stages - 1:
            return own
        below = _after(done.get(("B", stage + 1, batch)), hop)
        return None if own is None or below is None else max(own, below)

    moved = True
    while moved:
        moved = False
        for rank in range(ranks):
            while position[rank] < len(plan[rank]):
                key = plan[rank][position[rank]]
                at = ready(key)
                if at is None:
                    break
                start = max(clock[rank], at)
                clock[rank] = start + cost[key[0]]
                done[key] = clock[rank]
                work.append(Work(rank, key[1] // ranks, key[2], key[0], start, clock[rank]))
                position[rank] += 1
                moved = True
    if any(position[rank] < len(plan[rank]) for rank in range(ranks)):
        raise InputError(f"{schedule} with {micro_batches} micro-batches on {ranks} ranks waits for itself")
    makespan = max(clock)
    busy = sum(w.end - w.start for w in work)
    return Timeline(tuple(work), makespan, 1.0 - busy / (makespan * ranks), peak_in_flight(work, ranks, split))


def _after(time: float | None, hop: float) -> float | None:
    return None if time is None else time + hop


def peak_in_flight(work: list[Work], ranks: int, split: bool) -> tuple[int, ...]:
    """Activations of chunks each rank holds at its fullest: from a forward's start to the end of its backward."""
    release = "W" if split else "B"
    peaks = []
    for rank in range(ranks):
        events = [(w.end, -1) for w in work if w.rank == rank and w.kind == release]
        events += [(w.start, 1) for w in work if w.rank == rank and w.kind == "F"]
        held = peak = 0
        for _, change in sorted(events, key=lambda event: (event[0], event[1])):
            held += change
            peak = max(peak, held)
        peaks.append(peak)
    return tuple(peaks)
