"""The table of stages: what each reads, which part of the recipe decides it, and the function that builds it.

Functions are named, not imported: looking at the table loads no part. `load("module:name")` imports one.

    [stage.name for stage in STAGES]      # collect, curate, tokenizer, dataset, train, evaluate, export
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from headwater.core.config import identity
from headwater.core.errors import UserError
from headwater.core.recipe_schema import nearest
from headwater.curate.config import COLLECT_VERSION

if TYPE_CHECKING:
    from headwater.pipeline.schema import Recipe


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage. `inputs` are the stages it reads from; `sections` the parts of the recipe whose identity decides its
    result; `section` is the one its function is handed. `raw` marks the stage that reads raw files. `version` is
    raised when the code's result changes."""

    name: str
    what: str
    section: str
    sections: tuple[str, ...]
    version: int
    entry: str
    inputs: tuple[str, ...] = ()
    raw: bool = False

    def identity(self, recipe: Recipe) -> dict[str, Any]:
        """What of a recipe decides this stage's result."""
        values = {name: identity(getattr(recipe, name)) for name in self.sections}
        return values[self.section] if self.sections == (self.section,) else values


STAGES: tuple[Stage, ...] = (
    Stage(
        "collect",
        "raw files to documents",
        "collect",
        ("collect",),
        COLLECT_VERSION,
        "headwater.curate.stage:build_collect",
        raw=True,
    ),
    Stage(
        "curate",
        "clean, deduplicate, split",
        "curate",
        ("curate",),
        4,
        "headwater.curate.stage:build_curate",
        ("collect",),
    ),
    Stage(
        "tokenizer",
        "train a vocabulary",
        "tokenizer",
        ("tokenizer",),
        1,
        "headwater.tokenizer.build:build",
        ("curate",),
    ),
    Stage(
        "dataset",
        "pack into token shards",
        "dataset",
        ("dataset",),
        1,
        "headwater.dataset.build:build",
        ("curate", "tokenizer"),
    ),
    Stage(
        "train",
        "train the model",
        "train",
        ("model", "train", "seed"),
        1,
        "headwater.pipeline.training:train_stage",
        ("dataset", "tokenizer"),
    ),
    Stage(
        "evaluate",
        "score on held-out text",
        "evaluate",
        ("evaluate",),
        1,
        "headwater.evaluate.stage:build",
        ("train", "dataset"),
    ),
    Stage(
        "export", "write a Hugging Face folder", "export", ("export",), 1, "headwater.pipeline.export:build", ("train",)
    ),
)

BY_NAME = {stage.name: stage for stage in STAGES}

ALSO_READ_BY = {
    "executor": "the stages collect, curate, tokenizer and dataset",
    "monitor": "stage train",
    "parallel": "stage train",
    "serve": "`headwater serve`",
    "cluster": "`headwater plan`",
    "workspace": "every command",
}


def section_uses() -> dict[str, str]:
    """Top-level section -> what reads it, in words, for `headwater recipe explain`."""
    uses = dict(ALSO_READ_BY)
    for stage in STAGES:
        for name in stage.sections:
            uses[name] = f"stage {stage.name}"
    return uses


def find_stage(name: str) -> Stage:
    """A stage by name. Raises UserError with the nearest one."""
    if name in BY_NAME:
        return BY_NAME[name]
    near = nearest(name, list(BY_NAME))
    listed = ", ".join(BY_NAME)
    raise UserError(
        f"there is no stage {name!r}", mend=f"did you mean {near}? " if near else f"the stages are {listed}"
    )


def load(entry: str) -> Callable[..., Any]:
    """Import `module:name`."""
    module, _, name = entry.partition(":")
    function: Callable[..., Any] = getattr(import_module(module), name)
    return function
