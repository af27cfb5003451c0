"""From a recipe and a layout to a certificate: what `headwater check` does.

In: a recipe, a layout in one line or the recipe's own. Out: a `Certificate`, or a table of them. The layout is put into
the recipe first, so whatever `headwater run` would refuse is refused here, with the same words.

    check_layout(Path("recipes/quickstart.yaml"), "dp=2,tp=2,zero=3").agrees
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headwater.core.errors import UserError
from headwater.core.progress import SILENT, Reporter
from headwater.parallel.config import ParallelConfig
from headwater.parallel.short import parse_layout, short_layout
from headwater.pipeline.schema import load

if TYPE_CHECKING:
    from headwater.train.certificate import Certificate
    from headwater.train.certificate_case import Case

MOST_RANKS = 64
"""More processes than this on one machine say nothing new about a layout and take minutes to start."""

SCHEDULES = ("gpipe", "1f1b", "interleaved_1f1b", "interleaved_zero_bubble", "zbv", "dualpipev")

MATRIX = (
    # each axis alone
    "dp=2", "dp=2,zero=1", "dp=2,zero=2", "dp=2,zero=3", "dp_replicate=2,dp_shard=2",
    "tp=2", "tp=4", "tp=8",
    "cp=2,cp_method=ulysses", "cp=2,cp_method=all_gather",
    *(f"pp=2,schedule={name}" for name in SCHEDULES),
    # two and three of them
    "dp=2,tp=2", "dp=2,zero=3,tp=2", "dp=2,pp=2", "dp=2,zero=3,pp=2,schedule=zbv", "tp=2,pp=2",
    "dp=2,zero=3,cp=2", "cp=2,tp=2,cp_method=ulysses", "cp=2,tp=2,cp_method=all_gather",
    "cp=2,pp=2,schedule=interleaved_1f1b", "pp=4,schedule=interleaved_zero_bubble",
    "dp=2,tp=2,pp=2", "dp=2,zero=3,tp=2,pp=2,schedule=interleaved_1f1b", "dp=2,zero=3,cp=2,tp=2",
    # everything, and in other arithmetic
    "dp=2,zero=3,cp=2,tp=2,pp=2",
    "dp=2,zero=3,tp=2,pp=2,precision=bf16", "dp=4,zero=1,pp=2,tp=2,precision=fp16",
)  # fmt: skip
"""The standard layouts of `--matrix`, 2 to 16 ranks."""


def check_layout(
    recipe: Path,
    layout: str | None = None,
    *,
    overrides: Sequence[str] = (),
    timeout: float = 300.0,
    reporter: Reporter = SILENT,
) -> Certificate:
    """Three steps of the recipe's model in small, in the layout and in one process.

    Raises RecipeError for a recipe that does not fit the layout, UserError for a layout that cannot be started here,
    `RankError` where a rank fails or does not end in `timeout` seconds.
    """
    from headwater.train.certificate import certify

    case = case_of(recipe, layout, overrides=overrides, reporter=reporter)
    reporter.stage("check", describe(case))
    return certify(case, timeout=timeout)


def check_matrix(
    recipe: Path, *, overrides: Sequence[str] = (), timeout: float = 300.0, reporter: Reporter = SILENT
) -> Iterator[Certificate]:
    """The standard layouts that the recipe divides by, one by one; the others are named with the reason."""
    from headwater.train.certificate import certify

    load(recipe, overrides)  # a mistake of the recipe's own is no layout's
    for line in MATRIX:  # no progress bar: its thread does not go well with forking
        try:
            case = case_of(recipe, line, overrides=overrides)
        except UserError as error:
            reporter.info(f"{line} is left out: {error.what}")
            continue
        reporter.stage("check", describe(case))
        yield certify(case, timeout=timeout)


def case_of(recipe: Path, layout: str | None, *, overrides: Sequence[str] = (), reporter: Reporter = SILENT) -> Case:
    """The recipe with the layout in place, made small."""
    from headwater.train.certificate_case import small_case

    fields, precision = (None, None) if layout is None else parse_layout(layout)
    changes = list(overrides)
    if fields is not None:
        changes.append(f"parallel={json.dumps(fields)}")
    if precision is not None:
        changes.append(f"train.precision={precision}")
    config = load(recipe, changes).config
    parallel = config.parallel
    if parallel.ranks == 1:
        raise UserError(
            "the layout is one process, which agrees with itself",
            where="--layout" if layout is not None else str(recipe),
            mend="name a layout of several ranks, such as --layout dp=2,tp=2,zero=3",
        )
    if parallel.ranks > MOST_RANKS:
        axes = {
            name: min(2, getattr(parallel, name))
            for name in ("dp_replicate", "dp_shard", "tp", "pp", "cp", "virtual_stages")
        }
        smaller = short_layout(ParallelConfig.model_validate({**parallel.model_dump(), **axes, "micro_batch": None}))
        raise UserError(
            f"{parallel.ranks:,} ranks are more than the {MOST_RANKS} processes this starts on one machine",
            where="parallel" if layout is None else "--layout",
            mend=f"check the same axes in small: --layout {smaller}",
        )
    chosen = config.train.precision
    if chosen in ("auto", "tf32"):
        reason = (
            "CPUs have no tf32"
            if chosen == "tf32"
            else "differences of a layout show best in it; train.precision is auto"
        )
        reporter.decide("precision fp32", reason)
        chosen = "fp32"
    return small_case(config.sized_model, config.train, parallel, precision=chosen, seed=config.seed)


def describe(case: Case) -> str:
    """What is run: `4 ranks = ..., fp32; 22,256 parameters, 2 layers of width 32, ...`."""
    model = case.model
    return (
        f"{case.parallel.describe()}, {case.precision}; in small: {model.parameter_count().total:,} parameters, "
        f"{model.num_hidden_layers} layers of width {model.hidden_size}, {model.num_attention_heads} query and "
        f"{model.num_key_value_heads} key-value heads, {case.rows} samples of {case.train.seq_len} tokens a step"
    )


def text(certificate: Certificate) -> str:
    """A certificate in words."""
    lines = [
        f"{d.kind:<9} {d.relative:8.1e} of {_allowed(d.tolerance):<5}  {'' if d.within else 'BEYOND  '}"
        + f"step {d.step}{f', {d.tensor}' if d.tensor else ''}"
        for d in certificate.differences
    ]
    if certificate.leak_unknown:
        lines.append(f"leaks     not tested: {certificate.leak_unknown}")
    elif certificate.leaked:
        row, position = certificate.leaked[0]
        lines.append(
            f"leaks     LEAK    {len(certificate.leaked)} positions saw a token that is hidden from them, the first of "
            f"them position {position} of sample {row}"
        )
    else:
        lines.append(f"leaks     none    {certificate.moved} of {certificate.expected} positions that may see it moved")
    lines += [f"problem   {problem}" for problem in certificate.problems]
    if certificate.agrees:
        lines.append(f"the layout agrees with one process ({certificate.seconds:.1f} s)")
    else:
        first = certificate.first
        where = f"; the first tensor that differs is the {first.kind} of {first.tensor}" if first else ""
        lines.append(f"the layout does NOT agree with one process{where} ({certificate.seconds:.1f} s)")
    return "\n".join(lines)


def _allowed(tolerance: float) -> str:
    return f"{tolerance:.0e}" if tolerance < 0.01 else f"{tolerance:g}"


TABLE_HEAD = (
    "| layout | ranks | precision | loss | gradient | norm | weights | leaks | seconds | agrees |\n"
    "|---|--:|---|--:|--:|--:|--:|---|--:|---|"
)
"""Of a Markdown table of certificates."""


def table_row(certificate: Certificate) -> str:
    """A certificate as a row: largest relative differences by kind."""
    parallel = certificate.case.parallel.model_copy(update={"micro_batch": None})
    figures = " | ".join(f"{d.relative:.1e}" for d in certificate.differences)
    leaks = "not tested" if certificate.leak_unknown else f"{len(certificate.leaked)}" if certificate.leaked else "none"
    return (
        f"| `{short_layout(parallel)}` | {parallel.ranks} | {certificate.case.precision} | {figures} | {leaks} | "
        f"{certificate.seconds:.1f} | {'yes' if certificate.agrees else '**no**'} |"
    )
