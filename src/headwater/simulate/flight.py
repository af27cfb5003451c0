"""A whole layout, simulated by its representative ranks: one of every pipeline stage, each in a process of its own.

In: a `Flight`. Out: a `FlightReport`: reports of the ranks, and the pipeline's schedule as they ran it. Ranks of other
tensor-, context- and data-parallel places do the same work on equal shares, or smaller ones where shares are uneven.

    report = fly(Flight(...), ranks=[0, 512, 1024], jobs=2)

A process for every rank, because PyTorch's caches keep what they know of a mesh for as long as a process lives.
"""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from typing import Any

from headwater.core.errors import HeadwaterError, UserError
from headwater.parallel.config import INTERLEAVED, ParallelConfig
from headwater.parallel.divisibility import check_divisible
from headwater.parallel.stages import micro_batch_problem
from headwater.simulate.rank import Flight, RankReport, per_micro_batch, simulate_rank
from headwater.simulate.timeline import Timeline, timeline


@dataclass(frozen=True)
class FlightReport:
    """`ranks` by number; `flows`: each rank's messages of a whole step (`micro_batches` of them, of which `simulated`
    were run). `seconds`: of the simulation; `peak_bytes`: the most memory all its processes took at once."""

    flight: Flight
    ranks: list[RankReport]
    flows: list[list[dict[str, Any]]]
    timeline: Timeline
    micro_batches: int
    simulated: int
    seconds: float
    peak_bytes: int


def representatives(parallel: ParallelConfig) -> list[int]:
    """The first rank of every pipeline stage."""
    each = parallel.ranks // parallel.pp
    return [stage * each for stage in range(parallel.pp)]


def simulated_micro_batches(parallel: ParallelConfig, micro_batches: int, most: int | None = None) -> int:
    """How many micro-batches of a step of so many to run: all of them in GPipe, which keeps them all; else enough to
    fill the pipeline twice (4 without one), or `most` if that is more."""
    if parallel.pp == 1:
        return min(micro_batches, max(most or 0, 4))
    if parallel.schedule == "gpipe":
        return micro_batches
    number = max(most or 0, 2 * parallel.pp)
    if parallel.schedule in INTERLEAVED:
        number += -number % parallel.pp
    return min(number, micro_batches)


def fly(
    flight: Flight,
    *,
    ranks: Sequence[int] | None = None,
    jobs: int | None = None,
    most: int | None = None,
    landed: Callable[[RankReport], None] = lambda _: None,
) -> FlightReport:
    """Simulate `ranks` (all stages' first ones by default), `jobs` of them at a time (as many as there are cores).

    Raises UserError for ranks that do not exist and numbers below one, RecipeError for a layout that the trainer
    refuses, and whatever else the trainer raises on the way.
    """
    started = time.perf_counter()
    chosen = _chosen(flight.parallel, ranks)
    for name, number in (("--jobs", jobs), ("--micro-batches", most)):
        if number is not None and number < 1:
            raise UserError(f"{number} is not above zero", where=name, mend="use 1 or more, or leave it out")
    check_divisible(flight.model, flight.parallel, {"train.seq_len": flight.seq_len})
    wanted = flight.rows // flight.micro_batch
    problem = micro_batch_problem(flight.parallel, wanted)
    if problem is not None:
        raise HeadwaterError(problem[0], where="parallel.schedule", mend=problem[1])
    number = simulated_micro_batches(flight.parallel, wanted, most)
    cut = flight if number == wanted else replace(flight, rows=number * flight.micro_batch)
    reports, peak = _run(cut, chosen, jobs or len(os.sched_getaffinity(0)), landed)
    flows = [per_micro_batch(report.flows, cut.rows, cut.micro_batch, wanted) for report in reports]
    drawn = timeline({report.pp: report.actions for report in reports}, flight.parallel.pp)
    return FlightReport(flight, reports, flows, drawn, wanted, number, time.perf_counter() - started, peak)


def _chosen(parallel: ParallelConfig, ranks: Sequence[int] | None) -> list[int]:
    """The ranks to fly, each once, in order."""
    if not ranks:
        return representatives(parallel)
    for rank in ranks:
        if not 0 <= rank < parallel.ranks:
            raise UserError(
                f"there is no rank {rank:,}", where="--rank", mend=f"the layout's are 0 to {parallel.ranks - 1:,}"
            )
    return sorted(set(ranks))


def _run(
    flight: Flight, ranks: list[int], jobs: int, landed: Callable[[RankReport], None]
) -> tuple[list[RankReport], int]:
    """Reports in the order of `ranks`, and the most resident memory of the processes that ran together."""
    context = multiprocessing.get_context("fork")
    waiting, running, done = list(ranks), dict[Connection, tuple[int, Any]](), dict[int, RankReport]()
    sizes: list[int] = []
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                rank = waiting.pop(0)
                reading, writing = context.Pipe(duplex=False)
                process = context.Process(target=_child, args=(flight, rank, writing))
                process.start()
                writing.close()
                running[reading] = rank, process
            for pipe in wait(list(running)):
                assert isinstance(pipe, Connection)
                rank, process = running.pop(pipe)
                try:
                    outcome, size = pipe.recv()
                except EOFError:
                    process.join()
                    raise HeadwaterError(
                        f"the process that simulated rank {rank} ended with exit code {process.exitcode}",
                        mend="if it ran out of memory, simulate fewer ranks at a time (--jobs 1)",
                    ) from None
                process.join()
                pipe.close()
                if isinstance(outcome, Exception):
                    raise outcome
                sizes.append(size)
                done[rank] = outcome
                landed(outcome)
    finally:
        for _, process in running.values():
            process.terminate()
            process.join()
    together = sum(sorted(sizes)[-jobs:])
    return [done[rank] for rank in ranks], together


def _child(flight: Flight, rank: int, pipe: Connection) -> None:
    import resource
    import traceback

    import torch

    gc.freeze()  # garbage of the forking process may own threads that this one has not
    torch.set_num_threads(1)
    logging.getLogger("torch.distributed.pipelining").setLevel(logging.CRITICAL)
    logging.getLogger("torch.distributed").setLevel(logging.CRITICAL)
    try:
        outcome: RankReport | Exception = simulate_rank(flight, rank)
    except HeadwaterError as error:
        outcome = error
    except Exception:
        outcome = HeadwaterError(traceback.format_exc(), where=f"simulated rank {rank}")
    pipe.send((outcome, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))
    pipe.close()
