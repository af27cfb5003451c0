"""`headwater simulate RECIPE --ranks 4096`: a step of a huge layout by the trainer's own code, without its machines.

The work is done by `headwater.simulate`; here a recipe becomes a flight, and the planner's figures are put beside it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.cli.common import Debug, Json, Quiet, Set, finish, make_reporter, write_named
from headwater.core.errors import RecipeError, UserError

if TYPE_CHECKING:
    from headwater.parallel.config import ParallelConfig
    from headwater.pipeline.schema import Recipe
    from headwater.plan import ClusterSpec, Plan
    from headwater.simulate.rank import Flight


def command(
    recipe: Annotated[Path, typer.Argument(help="The recipe.")],
    ranks: Annotated[
        int | None,
        typer.Option(help="Ranks of the layout; more data-parallel ranks than the recipe's make up for it."),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(help="For the planner's figures; the recipe's if not given.", show_default=False)
    ] = None,
    rank: Annotated[
        list[int] | None, typer.Option(help="Simulate this rank; by default one of every pipeline stage.")
    ] = None,
    micro_batches: Annotated[
        int | None,
        typer.Option(help="Run so many of a step's micro-batches [default: to fill the pipeline twice]."),
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="Ranks at a time [default: the cores].", show_default=False)] = None,
    report: Annotated[Path | None, typer.Option(help="Write an HTML page with the schedule.")] = None,
    set_: Set = None,
    json_: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Fly a layout on this machine: the trainer's code without GPUs and data. Memory, messages, schedule."""
    from headwater.pipeline.schema import load
    from headwater.plan import parse_cluster
    from headwater.simulate.compare import compare
    from headwater.simulate.flight import fly
    from headwater.simulate.text import page, text, values

    reporter = make_reporter(quiet=quiet)
    config = load(recipe, set_ or ()).config
    parallel = with_ranks(config.parallel, ranks)
    overrides = [*(set_ or ()), *_as_overrides(parallel)]
    named = config.cluster if cluster is None else cluster
    machines = None if named is None else parse_cluster(named)
    flight = _flight(config, parallel, machines)
    plan, why_not = _plan(recipe, machines, flight, overrides)
    if why_not:
        reporter.warn(f"without the planner's figures: {why_not}")
    if config.train.compile:
        reporter.info("compiled code is not simulated: its operations run one by one")
    flown = fly(
        flight,
        ranks=rank,
        jobs=jobs,
        most=micro_batches,
        landed=lambda done: reporter.info(
            f"{done.place}: {done.allocated_bytes / 2**30:.1f} GiB, simulated in {done.seconds:.0f} s"
        ),
    )
    rows = compare(flown, plan) if plan is not None else []
    if report is not None:
        write_named(report, page(flown, rows).encode())
        reporter.info(f"report: {report}")
    finish(values(flown, rows), text(flown, rows), as_json=json_)


def with_ranks(parallel: ParallelConfig, ranks: int | None) -> ParallelConfig:
    """The layout with as many data-parallel ranks as make `ranks` in all. UserError if the others do not divide it."""
    if ranks is None or ranks == parallel.ranks:
        return parallel
    others = parallel.tp * parallel.pp * parallel.cp
    shared = parallel.dp_shard > 1
    kept = parallel.dp_replicate if shared else parallel.dp_shard
    if ranks < 1:
        raise UserError(f"{ranks} ranks", where="--ranks", mend=f"use a multiple of {others * kept:,}")
    if ranks % (others * kept):
        raise UserError(
            f"{ranks:,} ranks do not divide by tp {parallel.tp} x pp {parallel.pp} x cp {parallel.cp}"
            + (f" x {'dp_replicate' if shared else 'dp_shard'} {kept}" if kept > 1 else ""),
            where="--ranks",
            mend=f"use a multiple of {others * kept:,}, or --set parallel.tp=...",
        )
    size = ranks // (others * kept)
    changed = {"dp_shard": size} if shared else {"dp_replicate": size}
    if shared and size == 1:
        changed |= {"zero_stage": 0}
    return type(parallel).model_validate({**parallel.model_dump(), **changed})


def _as_overrides(parallel: ParallelConfig) -> list[str]:
    names = ("dp_replicate", "dp_shard", "zero_stage")
    return [f"parallel.{name}={value}" for name in names if (value := getattr(parallel, name)) is not None]


def _plan(recipe: Path, machines: ClusterSpec | None, flight: Flight, overrides: list[str]) -> tuple[Plan | None, str]:
    """The planner's view of what is flown: its layout, micro-batch, sequence and batch; or why there is none."""
    from headwater.cli.plan import specifications
    from headwater.core.errors import HeadwaterError
    from headwater.plan import make_plan
    from headwater.simulate.layouts import layout_of

    if machines is None:
        return None, "no cluster is named"
    batch = flight.rows * flight.parallel.data_parallel
    try:
        model, work = specifications(
            str(recipe), machines, None, flight.seq_len, batch, flight.precision, None, overrides
        )[:2]
        layout = layout_of(flight.parallel, flight.config, model.layers, flight.micro_batch)
        return make_plan(model, work, machines.with_nodes(-(-layout.gpus // machines.gpus_per_node)), layout), ""
    except RecipeError:
        raise
    except HeadwaterError as error:
        return None, error.what


def _flight(recipe: Recipe, parallel: ParallelConfig, machines: ClusterSpec | None) -> Flight:
    from headwater.simulate.rank import Flight
    from headwater.train.estimate import choose_micro_batch
    from headwater.train.phases import plan_run

    train = recipe.train
    model = recipe.model if recipe.model.vocab_size else recipe.model.with_vocab_size(recipe.tokenizer.vocab_size)
    run = plan_run(train)
    segment = max(run.segments, key=lambda part: (part.seq_len, part.global_batch))
    precision: Any = train.precision
    if precision == "auto":
        precision = "bf16" if machines is None else machines.gpu.half
    size, _ = choose_micro_batch(
        parallel,
        model,
        run,
        train,
        free_bytes=int(machines.gpu.memory_bytes) if machines is not None else 80 * 2**30,
        device_type="cuda",
        precision=precision,
    )
    return Flight(
        model=model,
        config=train.model_copy(update={"compile": False}),
        parallel=parallel,
        precision=precision,
        micro_batch=size,
        rows=segment.global_batch // parallel.data_parallel,
        seq_len=segment.seq_len,
    )
