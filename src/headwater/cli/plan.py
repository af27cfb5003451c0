"""`headwater plan RECIPE|config.json --cluster ...`: what a run will need, and the layout to give it.

The work is done by `headwater.plan`; here a recipe becomes its plain specifications, and results are printed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.cli.common import Debug, Json, Quiet, Set, finish, is_recipe, make_reporter, write_named
from headwater.core.errors import InputError, UserError

if TYPE_CHECKING:
    from headwater.plan import ClusterSpec, Found, Layout, ModelSpec, Plan, TrainSpec


def command(
    target: Annotated[
        str,
        typer.Argument(help="A recipe, a Hugging Face config.json or its folder; or `diff`, `calibrate`, `compare`."),
    ],
    others: Annotated[
        list[Path] | None,
        typer.Argument(help="With `diff`: two plans saved with --json; with `compare`: a run.", show_default=False),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(help="GPU:PER_NODExNODES (a100-80gb:8x512) or a cluster file.", show_default=False),
    ] = None,
    tokens: Annotated[str | None, typer.Option(help="Tokens in all.", show_default=False)] = None,
    seq: Annotated[int | None, typer.Option(help="Tokens a sample.", show_default=False)] = None,
    batch: Annotated[int | None, typer.Option(help="Samples an optimizer step.", show_default=False)] = None,
    precision: Annotated[str | None, typer.Option(help="fp32, fp16, bf16, fp8 ...", show_default=False)] = None,
    stack: Annotated[
        str | None,
        typer.Option(help="Software whose habits are assumed [default: this trainer, as the recipe sets it]."),
    ] = None,
    goal: Annotated[str, typer.Option(help="fastest or cheapest.")] = "fastest",
    deadline: Annotated[float | None, typer.Option(help="At most this many days.", show_default=False)] = None,
    budget: Annotated[float | None, typer.Option(help="At most this many dollars, rented.", show_default=False)] = None,
    fix: Annotated[
        list[str] | None, typer.Option(metavar="KNOB=VALUE", help="Hold a knob: tp=8, zero=1 ...", show_default=False)
    ] = None,
    as_is: Annotated[bool, typer.Option("--as-is", help="Plan the recipe's own layout; search nothing.")] = False,
    any_: Annotated[bool, typer.Option("--any", help="Also layouts this trainer cannot run.")] = False,
    why: Annotated[bool, typer.Option("--why", help="What binds, what each knob gives, why others lost.")] = False,
    what_if: Annotated[
        str | None, typer.Option(help="Changes, each on its own: nic_per_node=400Gbps->100Gbps|gpu=h100|nodes=+8.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Write an HTML report.", show_default=False)] = None,
    emit: Annotated[
        str | None, typer.Option(help="Print only this: recipe, megatron or torchtitan.", show_default=False)
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="With `calibrate`: write the machine file here.", show_default=False)
    ] = None,
    set_: Set = None,
    json_: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Plan a run: memory, time, cost and failures for the best layout on a cluster, with what would change it."""
    if target == "diff":
        _diff(others or [], json_)
        return
    if target in ("calibrate", "compare"):
        from headwater.cli import plan_measured

        if target == "calibrate":
            plan_measured.calibrate(precision, output, as_json=json_, quiet=quiet)
        else:
            plan_measured.compare(others or [], cluster, as_json=json_)
        return
    if others:
        raise UserError("more than one recipe is given", where="headwater plan", mend="plan one at a time")
    from headwater.plan import make_plan, search
    from headwater.plan import what_if as ask
    from headwater.plan import why as explain
    from headwater.plan.report import html
    from headwater.plan.text import difference_text, full, why_text

    model, work, machines, own = specifications(target, cluster, tokens, seq, batch, precision, stack, set_ or ())
    knobs = _knobs(fix or [])
    found: Found | None = None
    if as_is:
        if own is None:
            raise UserError(f"{target} has no layout of its own", where="--as-is", mend="set parallel: in the recipe")
        plan, second = make_plan(model, work, machines, own), None
    else:
        found = search(
            model, work, machines, goal=goal, knobs=knobs, deadline_days=deadline, budget_dollars=budget,
            only_runnable=not any_,
        )  # fmt: skip
        if not found.layouts:
            near = f"nearest: {found.nearest.describe()}" if found.nearest else ""
            raise UserError(found.miss, where="headwater plan", mend=near or "more GPUs, another batch, or other knobs")
        plan = make_plan(model, work, machines.with_nodes(found.nodes[0]), found.layouts[0])
        second = _runner_up(model, work, machines, found)
    if emit:
        text = _emit([plan] if found is None else _plans(model, work, machines, found), emit)
        finish({"format": emit, "text": text}, text.rstrip("\n"), as_json=json_)
        return
    if report and found is not None and len(found.pareto) < 2:
        wide = search(model, work, machines, goal="cheapest", knobs=knobs, only_runnable=not any_)
        found.pareto = wide.pareto or found.pareto
    result: dict[str, Any] = dict(plan.data)
    pieces = [full(plan)]
    if own is not None and own.gpus > 1 and not as_is:
        pieces.append(_own(plan, model, work, machines, own))
    reasons = explain(plan, second) if why or report else None
    if why and reasons is not None:
        result["why"] = reasons
        pieces.append(why_text(reasons))
    if what_if:
        result["what_if"] = ask(plan, what_if, knobs, only_runnable=not any_, keep_layout=as_is)
        pieces += [f"{entry['change']}\n{difference_text(entry)}" for entry in result["what_if"]]
    if found is not None:
        result["search"] = {"considered": found.considered, "fitting": found.fitting, "pareto": found.pareto}
    if report:
        write_named(report, html(plan, found, reasons).encode())
        make_reporter(quiet=quiet).info(f"report: {report}")
    finish(result, "\n\n".join(pieces), as_json=json_)


def _runner_up(model: ModelSpec, work: TrainSpec, machines: ClusterSpec, found: Found) -> Plan | None:
    """The best layout of another shape than the first."""
    from headwater.plan import make_plan

    first = found.layouts[0]
    for nodes, layout in zip(found.nodes, found.layouts, strict=True):
        if (layout.tp, layout.pp, layout.cp, layout.ep) != (first.tp, first.pp, first.cp, first.ep):
            return make_plan(model, work, machines.with_nodes(nodes), layout)
    return None


def _own(plan: Plan, model: ModelSpec, work: TrainSpec, machines: ClusterSpec, layout: Layout) -> str:
    from headwater.plan import make_plan

    try:
        own = make_plan(model, work, machines, layout)
    except InputError as error:
        return f"  the recipe's own layout ({layout.describe()}) is not for this cluster: {error.what}"
    ratio = own.data["days"]["p50"] / plan.data["days"]["p50"]
    held = own.data["memory"]
    fits = "" if held["fits"] else ", and it does not fit"
    return (
        f"  the recipe's own layout: {own.layout.describe()}\n    {own.data['days']['p50']:.1f} days (x{ratio:.2f}), "
        f"{held['device_bytes'] / 2**30:.0f} GiB a GPU{fits}"
    )


def _plans(model: ModelSpec, work: TrainSpec, machines: ClusterSpec, found: Found) -> Iterator[Plan]:
    from headwater.plan import make_plan

    for nodes, layout in zip(found.nodes, found.layouts, strict=True):
        yield make_plan(model, work, machines.with_nodes(nodes), layout)


def _emit(plans: Iterable[Plan], kind: str) -> str:
    """The best plan that the format can say; some trainers lack a schedule or a ZeRO stage."""
    from headwater.plan.export import megatron_flags, recipe_yaml, torchtitan_flags

    writers = {
        "recipe": recipe_yaml,
        "megatron": lambda plan: " \\\n  ".join(megatron_flags(plan)) + "\n",
        "torchtitan": lambda plan: " \\\n  ".join(torchtitan_flags(plan)) + "\n",
    }
    if kind not in writers:
        raise UserError(f"unknown format {kind!r}", where="--emit", mend=f"one of {', '.join(writers)}")
    refusal: InputError | None = None
    for plan in plans:
        try:
            return writers[kind](plan)
        except InputError as error:
            refusal = refusal or error
    assert refusal is not None, "a search without layouts ended before"
    raise refusal


def _knobs(texts: list[str]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not value:
            raise UserError(f"{text!r} holds nothing", where="--fix", mend="write KNOB=VALUE, for example tp=8")
        try:
            out[name.strip()] = value.strip() if name.strip() in ("schedule", "recompute") else int(value)
        except ValueError as error:
            raise UserError(
                f"{value!r} is not a whole number", where=f"--fix {name}", mend=f"write --fix {name}=2 or the like"
            ) from error
    return out


def _diff(paths: list[Path], as_json: bool) -> None:
    from headwater.plan import compare
    from headwater.plan.text import difference_text

    if len(paths) != 2:
        raise UserError(f"{len(paths)} plans are given", where="headwater plan diff", mend="give two JSON files")
    plans = []
    for path in paths:
        try:
            plans.append(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise InputError(f"cannot read a plan: {error}", where=str(path), mend="save one with --json") from error
    entry = compare(plans[0], plans[1])
    finish(entry, difference_text(entry), as_json=as_json)


def specifications(
    target: str,
    cluster: str | ClusterSpec | None,
    tokens: str | None,
    seq: int | None,
    batch: int | None,
    precision: str | None,
    stack: str | None,
    overrides: Any,
) -> tuple[ModelSpec, TrainSpec, ClusterSpec, Layout | None]:
    """What the planner needs, from a recipe or a model configuration and the options that override it."""
    from headwater.plan import ModelSpec, TrainSpec, parse_cluster
    from headwater.plan.quantities import count

    path = Path(target)
    if not path.exists():
        raise InputError("no such file or folder", where=target, mend="give a recipe or a config.json")
    layout: Layout | None = None
    if is_recipe(path):
        model, work, named, layout, compiled = _from_recipe(path, overrides, whole=seq is None)
        own_stack = "headwater-compiled" if compiled else "headwater"
        stack = own_stack if stack is None else stack
        cluster = named if cluster is None else cluster
    else:
        if overrides:
            raise UserError("--set changes a recipe, and none is given", where="--set", mend="leave out --set")
        missing = [name for name, value in (("--tokens", tokens), ("--seq", seq), ("--batch", batch)) if value is None]
        if missing:
            raise UserError(
                f"{', '.join(missing)} not given", where=target, mend="a model configuration says none of them"
            )
        model, work = ModelSpec.from_file(path), {"tokens": 1.0, "seq": 1, "global_batch": 1, "precision": "bf16"}
    if cluster is None:
        raise UserError("no cluster is named", where="--cluster", mend="for example --cluster a100-80gb:8x512")
    given = {
        "tokens": count(tokens, "--tokens") if tokens is not None else None,
        "seq": seq,
        "global_batch": batch,
        "precision": precision,
    }
    work |= {name: value for name, value in given.items() if value is not None}
    machines = parse_cluster(cluster) if isinstance(cluster, str) else cluster
    if work["precision"] == "auto":
        work["precision"] = machines.gpu.half
    return model, TrainSpec(stack="headwater" if stack is None else stack, **work), machines, layout


def _from_recipe(
    path: Path, overrides: Any, *, whole: bool
) -> tuple[ModelSpec, dict[str, Any], str | None, Layout, bool]:
    """Model, work, the cluster named, the layout set, and whether the model is compiled. `whole`: say which of several
    phases stands for the run."""
    from headwater.pipeline.schema import load
    from headwater.simulate.layouts import layout_of, model_of

    recipe = load(path, overrides).config
    m, t, p = recipe.model, recipe.train, recipe.parallel
    model = model_of(m if m.vocab_size else m.with_vocab_size(recipe.tokenizer.vocab_size), recipe.name)
    if m.encoder is not None:
        make_reporter().warn("attention to both sides is timed as a decoder's, which computes half of the scores")
    total = t.tokens if t.tokens is not None else (t.steps or 0) * t.global_batch * t.seq_len
    total = total or sum(phase.tokens or 0 for phase in t.phases)
    if not total:
        raise UserError("the recipe does not say how long it trains", where="train.tokens", mend="set train.tokens")
    seq, batch = t.seq_len, t.global_batch
    if t.phases:
        longest = max(t.phases, key=lambda phase: phase.share or phase.tokens or phase.steps or 0)
        seq = longest.seq_len or seq
        batch = longest.global_batch or max(1, t.global_batch * t.seq_len // seq)
        if whole:
            make_reporter().warn(
                f"the recipe has {len(t.phases)} phases; the longest, {longest.name} ({batch:,} samples of {seq:,} "
                "tokens), is planned for all tokens. Plan another with --seq and --batch"
            )
    work: dict[str, Any] = {
        "tokens": float(total),
        "seq": seq,
        "global_batch": batch,
        "precision": t.precision,
        "optimizer": t.optimizer.name,
    }
    if t.batch_ramp is not None:
        work["warmup_batch_tokens"] = t.batch_ramp.steps * seq * (t.batch_ramp.start + batch) / 2.0
    return model, work, recipe.cluster, layout_of(p, t, model.layers, p.micro_batch or 1), t.compile
