"""`headwater doctor RUN`: what is wrong with a run, why, and what to change."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headwater.cli.common import Debug, Json, Set, Workspace, finish, is_recipe, refuse


def command(
    target: Annotated[Path, typer.Argument(help="A run's folder, or a recipe.", show_default=False)],
    workspace: Workspace = None,
    set_: Set = None,
    json_: Json = False,
    debug: Debug = False,
) -> int:
    """Say what is wrong with a run, from its record: symptom, evidence, likely causes, and the change that helps.

    Exit code 0: nothing wrong is seen; 1: something is.
    """
    from headwater.diagnose import diagnose, diagnosis_text
    from headwater.pipeline.status import run_of
    from headwater.train.run_folder import RunFolder

    if is_recipe(target):
        run = run_of(target, set_ or (), workspace)
    else:
        refuse("--set", bool(set_), "changes a recipe, and none is given")
        refuse("--workspace", workspace is not None, "goes with a recipe; a run's folder lies in its workspace")
        run = RunFolder.open(target)
    diagnosis = diagnose(run)
    finish(diagnosis.to_json(), diagnosis_text(diagnosis), as_json=json_)
    return 0 if diagnosis.healthy else 1
