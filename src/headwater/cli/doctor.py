"""`headwater doctor RUN [--step N]`: what is wrong with a run, why, and what to change; whose fault a step was."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headwater.cli.common import Debug, Json, Set, Workspace, finish, make_reporter, refuse, run_path


def command(
    target: Annotated[
        Path, typer.Argument(help="A run's folder, a workspace (its newest run), or a recipe.", show_default=False)
    ],
    step: Annotated[
        int | None, typer.Option(help="Do this step again and say whose fault it was.", show_default=False)
    ] = None,
    dataset: Annotated[
        Path | None, typer.Option(help="--step: the run's dataset, if it lies elsewhere.", show_default=False)
    ] = None,
    max_replay: Annotated[
        int | None,
        typer.Option(min=0, help="--step: most steps to train again before it [default: 1000].", show_default=False),
    ] = None,
    workspace: Workspace = None,
    set_: Set = None,
    json_: Json = False,
    debug: Debug = False,
) -> int:
    """Say what is wrong with a run, from its record: symptom, evidence, likely causes, and the change that helps.

    With --step N the step is done again from the nearest checkpoint: its documents, the worst first, and whether it was
    the data, the state or the hardware. Exit code 0: nothing wrong is seen; 1: something is.
    """
    from headwater.diagnose import diagnose, diagnosis_text
    from headwater.train.run_folder import RunFolder

    run = RunFolder.open(run_path(target, workspace, set_ or ()))
    if step is not None:
        from headwater.diagnose.autopsy import autopsy_of, autopsy_text
        from headwater.diagnose.replaying import MAX_REPLAY, replay_step
        from headwater.pipeline.tracing import dataset_of_run

        found = dataset_of_run(run, dataset)
        most = MAX_REPLAY if max_replay is None else max_replay
        autopsy = autopsy_of(replay_step(run, step, found, max_replay=most, reporter=make_reporter()))
        finish(autopsy.to_json(), autopsy_text(autopsy), as_json=json_)
        return 0 if autopsy.cause == "nothing" else 1
    refuse("--dataset", dataset is not None, "goes with --step")
    refuse("--max-replay", max_replay is not None, "goes with --step")
    diagnosis = diagnose(run)
    finish(diagnosis.to_json(), diagnosis_text(diagnosis), as_json=json_)
    return 0 if diagnosis.healthy else 1
