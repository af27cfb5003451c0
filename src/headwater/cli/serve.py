"""`headwater serve`: an OpenAI-style server around a model."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli.common import (
    Debug,
    Json,
    ModelOrRecipe,
    Quiet,
    Set,
    Stopped,
    Workspace,
    is_recipe,
    make_reporter,
    print_json,
    refuse,
    require_exists,
    until_stopped,
)
from headwater.core.recipe_schema import yaml_inline

if TYPE_CHECKING:
    from headwater.serve import Serving


def command(
    target: ModelOrRecipe,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on [default: 127.0.0.1].", show_default=False)
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="TCP port; 0 takes a free one [default: 8080].", show_default=False)
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name for clients [default: the folder's or recipe's].", show_default=False)
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, mps.")] = "auto",
    workspace: Workspace = None,
    set_: Set = None,
    json_: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> Stopped | None:
    """Serve a model to OpenAI clients until Ctrl-C.

    `--set serve.max_concurrent=32` and the like change the other settings. With `--json` the object on stdout is
    printed when the server takes connections: url, model, a command to try it.
    """
    from headwater.pipeline.schema import load, loads

    overrides = list(set_ or ())
    for field, value in (("host", host), ("port", port), ("model_name", name)):
        if value is not None:
            overrides.append(f"serve.{field}={yaml_inline(value)}")
    if is_recipe(target):
        from headwater.pipeline.runner import run

        loaded = load(target, overrides)
        config = loaded.config.serve
        config = config.model_copy(update={"model_name": config.model_name or loaded.config.name})
        result = run(loaded, workspace=workspace, until="export", reporter=make_reporter(quiet=quiet))
        model = result.export_folder
    else:
        refuse("--workspace", workspace is not None, "goes with a recipe, and a model is given")
        require_exists([target])
        config, model = loads("schema: 1", overrides, name="--set").config.serve, target

    from headwater.serve import serve

    return until_stopped(lambda: serve(model, config, device=device, announce=_as_json if json_ else _as_text))


def _as_json(serving: Serving) -> None:
    print_json(asdict(serving))


def _as_text(serving: Serving) -> None:
    sys.stdout.write(f"{serving}\n")
    sys.stdout.flush()
