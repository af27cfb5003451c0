"""The V-shaped zero-bubble schedule, found by list scheduling: each rank holds the first and the last of two chunks.

Chunk 0 of rank r is stage r, chunk 1 stage 2p-1-r, so that a micro-batch comes back to where it began (Qi et al. 2024,
"Pipeline parallelism with controllable memory"). A rank always does what is ready: backward first, then the forward
that is further on, then a forward that starts, and a weight gradient when nothing else waits; activations of at most
2p chunks are held, as much as 1F1B's first rank.

    simulate_v(ranks=4, micro_batches=12, forward=1, dgrad=1, wgrad=1).makespan
"""

from __future__ import annotations

from collections import deque

from .pipeline_events import Timeline, Work, peak_in_flight


class _Rank:
    """What one rank may do: micro-batches ready for each kind of work, with the time they are ready."""

    def __init__(self) -> None:
        self.ready: dict[tuple[str, int], dict[int, float]] = {
            (kind, chunk): {} for kind in ("F", "B") for chunk in (0, 1)
        }
        self.weights: deque[tuple[int, int]] = deque()
        self.held = 0
        self.clock = 0.0


def simulate_v(
    *, ranks: int, micro_batches: int, forward: float, dgrad: float, wgrad: float, hop: float = 0.0
) -> Timeline:
    """Run the schedule; times are of one chunk and micro-batch."""
    last = 2 * ranks - 1
    cost = {"F": forward, "B": dgrad, "W": wgrad}
    state = [_Rank() for _ in range(ranks)]
    state[0].ready["F", 0] = dict.fromkeys(range(micro_batches), 0.0)
    work: list[Work] = []
    left = ranks * micro_batches * 6
    while left:
        rank, kind, chunk, batch, start = min(
            (choice for r in range(ranks) if (choice := _next(state[r], r, ranks)) is not None),
            key=lambda choice: (choice[4], choice[0]),
        )
        here, end = state[rank], start + cost[kind]
        here.clock = end
        work.append(Work(rank, chunk, batch, kind, start, end))
        left -= 1
        stage = rank if chunk == 0 else last - rank
        if kind == "W":
            here.weights.popleft()
            here.held -= 1
            continue
        del here.ready[kind, chunk][batch]
        if kind == "F":
            here.held += 1
            target, what = (stage + 1, "F") if stage < last else (stage, "B")
        else:
            here.weights.append((chunk, batch))
            target, what = stage - 1, "B"
        if target >= 0:
            far = target if target < ranks else last - target
            delay = hop if far != rank else 0.0
            state[far].ready[what, 0 if target < ranks else 1][batch] = end + delay
    makespan = max(rank.clock for rank in state)
    busy = sum(w.end - w.start for w in work)
    return Timeline(tuple(work), makespan, 1.0 - busy / (makespan * ranks), peak_in_flight(work, ranks, True))


def _next(here: _Rank, rank: int, ranks: int) -> tuple[int, str, int, int, float] | None:
    """The next work of a rank and when it starts; None when it has nothing to wait for."""
    limit = 2 * ranks
    order = [("B", 1), ("B", 0)]
    if here.held < limit:
        order.append(("F", 1))
    if here.held < limit - 1:  # one place is kept for the way back, or nothing would ever return
        order.append(("F", 0))
    soonest: tuple[int, str, int, int, float] | None = None
    for kind, chunk in order:
        waiting = here.ready[kind, chunk]
        if not waiting:
            continue
        batch = min(waiting)
        start = max(here.clock, waiting[batch])
        if start <= here.clock:
            return rank, kind, chunk, batch, start
        if soonest is None or start < soonest[4]:
            soonest = (rank, kind, chunk, batch, start)
    if here.weights:
        chunk, batch = here.weights[0]
        return rank, "W", chunk, batch, here.clock
    return soonest
