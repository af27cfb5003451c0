"""The certificate of a layout: three real steps in it and in one process, and how far apart they end.

In: a `Case` (a user's model in small, and the layout). Out: a `Certificate`: for loss, gradients, gradient norm and
weights the largest relative difference with its tensor, the first tensor beyond its tolerance, and whether a token was
seen where it must not be. Ranks are real processes that talk through gloo and run what training runs: `TrainModule`.

    certificate = certify(small_case(model, train, parallel, precision="fp32", seed=0)); certificate.agrees

Measures: loss and norm |a - b| / |b|, the largest of three steps; a gradient max |a - b| / max |b| of its tensor;
weights |a - b| / |b - start| (2-norms of a tensor) after three steps. b is the one process.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Literal

from headwater.parallel.local_ranks import run_local_ranks
from headwater.parallel.short import short_layout
from headwater.train.certificate_case import Case
from headwater.train.certificate_ranks import RankReport, Reference, run_rank, run_reference

Kind = Literal["loss", "gradient", "norm", "weights"]
KINDS: tuple[Kind, ...] = ("loss", "gradient", "norm", "weights")

TIMEOUT_SECONDS = 300.0

TOLERANCES: dict[str, dict[Kind, float]] = {
    "fp32": {"loss": 1e-5, "gradient": 1e-4, "norm": 1e-5, "weights": 1e-3},
    "fp16": {"loss": 1e-4, "gradient": 5e-2, "norm": 5e-3, "weights": 1e-1},
    "bf16": {"loss": 1e-3, "gradient": 1.5e-1, "norm": 1e-2, "weights": 3e-1},
    "fp8": {"loss": 1e-2, "gradient": 7e-1, "norm": 3e-2, "weights": 7e-1},
}
"""Largest relative differences by precision. In fp32 a layout differs by the order of its sums; below, each rank also
rounds its own parts of a product, and AdamW turns small gradients that round to another sign. Measured over 2 to 16
ranks: fp32 2e-7, 4e-5, 5e-7, 7e-5; fp16 4e-6, 1e-2, 2e-4, 2e-2; bf16 3e-5, 5e-2, 3e-4, 2e-1; fp8 3e-4, 4e-1, 3e-3,
4e-1. A wrong reduction, mask or position shows in the first digit of a gradient, or in the norm."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The largest relative difference of a kind, where it is, and what is allowed."""

    kind: Kind
    relative: float
    tensor: str
    step: int
    tolerance: float

    @property
    def within(self) -> bool:
        return self.relative <= self.tolerance


@dataclass(frozen=True, slots=True)
class Certificate:
    """What was found. `first`: the first tensor beyond its tolerance, by step and then in the model's order; `skipped`:
    steps that both sides skipped because fp16 overflowed."""

    case: Case
    differences: tuple[Difference, ...]
    first: Difference | None
    problems: tuple[str, ...]
    leaked: tuple[tuple[int, int], ...]
    moved: int
    expected: int
    leak_unknown: str
    skipped: int
    seconds: float

    @property
    def agrees(self) -> bool:
        """Everything within tolerance, nothing missing, no leak."""
        return not self.problems and not self.leaked and all(d.within for d in self.differences)

    def to_json(self) -> dict[str, Any]:
        """Plain values, for `--json`."""
        model, parallel = self.case.model, self.case.parallel
        return {
            "agrees": self.agrees,
            "layout": short_layout(parallel),
            "ranks": parallel.ranks,
            "precision": self.case.precision,
            "model": {
                "parameters": model.parameter_count().total,
                **{
                    name: getattr(model, name)
                    for name in (
                        *("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
                        *("head_dim", "intermediate_size", "vocab_size"),
                    )
                },
            },
            "batch": {
                "samples": self.case.rows,
                "micro_batch": self.case.micro_batch,
                "seq_len": self.case.train.seq_len,
            },
            "differences": {
                d.kind: {
                    "relative": d.relative,
                    "tensor": d.tensor,
                    "step": d.step,
                    "tolerance": d.tolerance,
                    "within": d.within,
                }
                for d in self.differences
            },
            "first_difference": None
            if self.first is None
            else {"kind": self.first.kind, "tensor": self.first.tensor, "relative": self.first.relative},
            "skipped_steps": self.skipped,
            "problems": list(self.problems),
            "leak": {
                "leaked": [{"row": row, "position": position} for row, position in self.leaked],
                "moved": self.moved,
                "may_move": self.expected,
                "not_tested": self.leak_unknown,
            },
            "seconds": round(self.seconds, 2),
        }


def certify(case: Case, *, reference: Reference | None = None, timeout: float = TIMEOUT_SECONDS) -> Certificate:
    """Run the case in one process (unless a `reference` of the same case is given) and in its layout, and compare.

    UserError where the layout cannot be run; RankError where a rank fails or hangs.
    """
    started = time.monotonic()
    if reference is None:
        reference = reference_of(case, timeout=timeout)
    reports: list[RankReport] = run_local_ranks(case.parallel.ranks, run_rank, case, reference, timeout=timeout)
    return judge(case, reference, reports, time.monotonic() - started)


def reference_of(case: Case, *, timeout: float = TIMEOUT_SECONDS) -> Reference:
    """The case in one process of its own."""
    (reference,) = run_local_ranks(1, run_reference, case, timeout=timeout)
    assert isinstance(reference, Reference)
    return reference


def judge(case: Case, reference: Reference, reports: list[RankReport], seconds: float) -> Certificate:
    """Put the ranks' reports together."""
    found: list[Difference] = []
    tolerance = TOLERANCES[case.precision]

    def note(kind: Kind, difference: float, size: float, tensor: str, step: int) -> None:
        found.append(Difference(kind, _ratio(difference, size), tensor, step, tolerance[kind]))

    problems = sorted({stray for report in reports for stray in report.strays})
    for step, gradients in enumerate(reference.gradients):
        for kind, one, all_ranks in (
            ("loss", reference.losses[step], [report.losses[step] for report in reports]),
            ("norm", reference.norms[step], [report.norms[step] for report in reports]),
        ):
            note(kind, max(_apart(value, one) for value in all_ranks), abs(one), "", step + 1)  # type: ignore[arg-type]
        for name, gradient in gradients.items():
            held = [report.gradients[step][name] for report in reports if name in report.gradients[step]]
            if held:
                note("gradient", max(held), float(gradient.abs().amax()), name, step + 1)
            else:
                problems.append(f"step {step + 1}: no rank has a gradient of {name}")
    worst = max(_apart(report.validation, reference.validation) for report in reports)
    note("loss", worst, abs(reference.validation), "validation", len(reference.losses))
    for name in reference.names:
        parts = [report.weights[name] for report in reports if name in report.weights]
        if not parts:
            problems.append(f"no rank holds {name}")
            continue
        difference, change = (sum(part[i] for part in parts) ** 0.5 for i in (0, 1))
        note("weights", difference, change, name, len(reference.losses))
    if not any(reference.gradients):
        problems.append("the optimizer skipped all steps")
    beyond = [d for d in found if not d.within and d.kind in ("gradient", "weights")]
    return Certificate(
        case=case,
        differences=tuple(max((d for d in found if d.kind == kind), key=lambda d: d.relative) for kind in KINDS),
        first=beyond[0] if beyond else None,
        problems=tuple(problems),
        leaked=tuple(sorted({place for report in reports for place in report.leaked})),
        moved=sum(report.moved for report in reports),
        expected=sum(report.expected for report in reports),
        leak_unknown=case.leak_unknown,
        skipped=sum(not gradients for gradients in reference.gradients),
        seconds=seconds,
    )


def _apart(one: float, other: float) -> float:
    """|one - other|; 0 for the same infinity, infinite where one of them is no number."""
    if one == other:
        return 0.0
    difference = abs(one - other)
    return difference if difference == difference else float("inf")


def _ratio(difference: float, size: float) -> float:
    if difference == 0:
        return 0.0
    return difference / size if size > 0 else float("inf")
