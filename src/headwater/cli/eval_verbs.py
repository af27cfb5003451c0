"""`headwater eval`: a model on text and benchmarks, and under names of their own what needs other arguments.

`headwater eval compare A B` is a verb; `headwater eval MODEL ...` is what anything else means.
"""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from headwater.cli import eval_compare, eval_filter, eval_robust, eval_stereoset, evaluate

MODEL = "model"
"""The command that takes every first argument which is no verb. Its name is never typed."""


class _Verbs(TyperGroup):
    """A group whose first argument may be a model."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or args[0] not in self.commands or args[0] == MODEL:
            args = [MODEL, *args]
        return super().parse_args(ctx, args)


class _Model(TyperCommand):
    """Speaks of itself as the group: usage and errors say `headwater eval`."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        return super().make_context(parent.info_name, args, parent=parent.parent, **extra)


app = typer.Typer(cls=_Verbs, help="Score a model on held-out text and benchmarks.", add_completion=False)
app.command(
    MODEL,
    cls=_Model,
    epilog="Verbs of their own: compare, filter, robust, stereoset. See `headwater eval VERB --help`.",
)(evaluate.command)
app.command("compare")(eval_compare.command)
app.command("filter")(eval_filter.command)
app.command("robust")(eval_robust.command)
app.command("stereoset")(eval_stereoset.command)
