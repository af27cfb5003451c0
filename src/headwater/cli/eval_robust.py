"""`headwater eval robust MODEL`: tasks under typing errors, look-alikes, lost words and distraction."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headwater.cli.common import Debug, Json, Quiet, finish, make_reporter, require_exists


def command(
    target: Annotated[
        Path, typer.Argument(help="A model: export, Hugging Face folder, run, checkpoint.", show_default=False)
    ],
    tasks: Annotated[list[str], typer.Option(help="Tasks by name, with commas between.", show_default=False)],
    perturb: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND:RATE",
            help="typo, swap, homoglyph, shape, homophone, case, word_swap, word_delete, distractor, punctuation, "
            "width; may be repeated [default: ten of them].",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", help="Folder of benchmark files [default: the Hugging Face hub].", show_default=False),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(help="Only the first rows of each task.", min=1, show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the damage.")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Also write robustness.json and items here.", show_default=False)
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, mps.")] = "auto",
    json_: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Score tasks clean and damaged: the share of the score that is lost, with its interval.

    Damage is seeded: the same seed damages the same characters, for every model.
    """
    from headwater.evaluate.backends import LocalBackend
    from headwater.evaluate.robustness.measure import DEFAULT, measure
    from headwater.evaluate.tasks import find_tasks

    require_exists([target, *([data] if data else [])])
    names = [name.strip() for value in tasks for name in value.split(",") if name.strip()]
    specs = find_tasks(names=names)
    backend = LocalBackend.open(target, device=device)
    reporter = make_reporter(quiet=quiet)
    results = [
        measure(spec, backend, perturb or DEFAULT, folder=data, limit=limit, seed=seed, reporter=reporter)
        for spec in specs
    ]
    found = {"model": {"name": backend.name, **backend.model}, "tasks": {one.task: one.as_json() for one in results}}
    if out is not None:
        from headwater.core.files import atomic_write
        from headwater.core.jsonl import canonical_json, json_safe, pretty_json

        out.mkdir(parents=True, exist_ok=True)
        atomic_write(out / "robustness.json", pretty_json(json_safe(found)))
        for one in results:
            packed = b"".join(canonical_json(json_safe(row)) + b"\n" for row in one.rows())
            atomic_write(out / f"robustness-{one.task}.jsonl", packed)
    lines = [
        "| task | perturbation | clean | damaged | drop rate | interval | p | items changed |",
        "|---|---|---:|---:|---:|---|---:|---:|",
    ]
    for one in results:
        for name, damaged in one.damaged.items():
            rate = damaged.drop_rate
            p_value = damaged.drop.p_value if damaged.p_value is None else damaged.p_value
            lines.append(
                f"| {one.task} | {name} | {one.clean:.4g} | {damaged.score:.4g} | {rate.value:.1%} | "
                f"{rate.low:.1%} to {rate.high:.1%} | {p_value:.3g} | {damaged.changed:,} of {one.n:,} |"
            )
    finish(found, "\n".join(lines), as_json=json_)
