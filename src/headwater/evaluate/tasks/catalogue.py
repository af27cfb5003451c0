"""Tasks by name: ours, and a person's own from a YAML file or a folder of them.

find_tasks(suites=["base"], names=["mine.yaml"])
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import yaml
from pydantic import ValidationError

from headwater.core.errors import RecipeError, UserError
from headwater.evaluate.harm import refusal  # noqa: F401 - registers readers and a scorer
from headwater.evaluate.tasks import (  # noqa: F401 - they register readers and scorers
    coherence,
    formats,
    numbers,
    preferences,
)
from headwater.evaluate.tasks.readers import reader_names
from headwater.evaluate.tasks.scorers import SCORERS
from headwater.evaluate.tasks.spec import TaskSpec

BUILTIN = Path(__file__).parent / "builtin"


@cache
def builtin_tasks() -> dict[str, TaskSpec]:
    """Our tasks, by name."""
    specs = [load_task(path) for path in sorted(BUILTIN.glob("*.yaml"))]
    return {spec.name: spec for spec in specs}


def load_task(path: Path) -> TaskSpec:
    """A task from its file. RecipeError with the field for one that is wrong."""
    try:
        loaded = yaml.safe_load(path.read_text("utf-8"))
        spec = TaskSpec.model_validate(loaded)
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", where=str(path)) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RecipeError(f"is no YAML: {error}", where=str(path)) from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "task"
        raise RecipeError(
            f"{place}: {first['msg']}", where=str(path), mend="docs/evaluate.md lists the fields"
        ) from error
    if spec.reader not in reader_names():
        raise RecipeError(f"no reader {spec.reader!r}", where=str(path), mend=f"use {', '.join(reader_names())}")
    if spec.kind == "generate" and spec.scorer not in SCORERS:
        raise RecipeError(f"no scorer {spec.scorer!r}", where=str(path), mend=f"use {', '.join(sorted(SCORERS))}")
    return spec


def find_tasks(*, suites: Sequence[str] = (), names: Sequence[str] = ()) -> list[TaskSpec]:
    """Tasks of suites and by name or YAML file, each once, in that order. UserError for one that is not there."""
    ours = builtin_tasks()
    known = sorted({suite for spec in ours.values() for suite in spec.suites})
    found: dict[str, TaskSpec] = {}
    for suite in suites:
        if suite != "all" and suite not in known:
            raise UserError(f"no suite {suite!r}", where="--suite", mend=f"use {', '.join(known)} or all")
        found |= {name: spec for name, spec in ours.items() if suite == "all" or suite in spec.suites}
    for name in names:
        if name.endswith((".yaml", ".yml")):
            spec = load_task(Path(name))
            found[spec.name] = spec
        elif name in ours:
            found[name] = ours[name]
        else:
            near = difflib.get_close_matches(name, ours, 1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise UserError(f"no task {name!r}", where="--tasks", mend=f"{hint}there are {', '.join(ours)}")
    return list(found.values())
