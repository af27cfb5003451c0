"""The simulator's figures beside the planner's, and what makes them differ.

In: a `FlightReport` and the `Plan` of the same layout. Out: rows of (stage, figure, simulated, planned), with the
reason wherever they are more than a twentieth apart. The planner has formulas for the first stage, one in the middle
and the last; the simulator's ranks 0, 1 and pp - 1 stand for them.

    for row in compare(report, plan): print(row.stage, row.figure, row.ratio, row.why)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headwater.parallel.config import V_SHAPED
from headwater.plan import Plan
from headwater.plan.build import one_case, scalars
from headwater.plan.candidates import SPLIT_BACKWARD
from headwater.plan.traffic import wire_bytes
from headwater.simulate.flight import FlightReport

CLOSE = 0.05

PARTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "weights and gradients": (("weights", "gathered", "gradients"), ("weights", "gradients", "gathered")),
    "optimizer": (("optimizer", "averages"), ("optimizer",)),
    "activations": (
        ("activations", "backward", "loss", "batch", "other"),
        ("activations", "logits", "workspace"),
    ),
}
"""Figure: kinds of the simulator's ledger, components of the planner."""

AXES: dict[str, tuple[str, ...]] = {
    "tp": ("tp",),
    "pp": ("pp",),
    "cp": ("cp",),
    "dp": ("dp", "fsdp", "dp_shard", "dp_replicate"),
}


@dataclass(frozen=True)
class Row:
    """Bytes of a step and rank. `why`: empty where the two are close."""

    stage: str
    rank: int
    figure: str
    simulated: float
    planned: float
    why: str

    @property
    def ratio(self) -> float:
        """Simulated by planned; infinite where the planner has nothing."""
        return self.simulated / self.planned if self.planned else float("inf")


def compare(report: FlightReport, plan: Plan) -> list[Row]:
    """Memory and traffic of the stages that both know."""
    traffic = wire_bytes(one_case(plan.model, plan.train, plan.cluster, plan.layout))
    rows: list[Row] = []
    for place, stage in _stages(report).items():
        rank = report.ranks[place]
        planned = plan.data["memory"]["stages"][stage]
        figures = {
            name: (
                float(sum(rank.at_peak.get(kind, 0) for kind in ours)),
                float(sum(planned[part] for part in theirs)),
            )
            for name, (ours, theirs) in PARTS.items()
        }
        figures["memory allocated"] = float(rank.allocated_bytes), float(sum(planned.values()))
        wires = scalars(traffic["middle" if stage == "only" else stage])
        for axis, names in AXES.items():
            found = sum(flow["wire_bytes"] for flow in report.flows[place] if flow["axis"] in names)
            if max(found, wires[axis]) > 4096.0:
                figures[f"traffic {axis}"] = found, wires[axis]
        for figure, (simulated, formula) in figures.items():
            close = abs(simulated - formula) <= CLOSE * max(formula, 1.0)
            why = "" if close else _why(figure, report, plan, more=simulated > formula)
            rows.append(Row(stage, rank.rank, figure, simulated, formula, why))
    return rows


def _stages(report: FlightReport) -> dict[int, str]:
    """Place in `report.ranks` -> the planner's name of the stage."""
    pp = report.flight.parallel.pp
    by_stage = {rank.pp: place for place, rank in enumerate(report.ranks)}
    if pp == 1:
        wanted: Mapping[int, str] = {0: "only"}
    elif report.flight.parallel.schedule in V_SHAPED:
        wanted = {0: "last", 1: "first"}
    else:
        wanted = {0: "first", pp - 1: "last"} | ({1: "middle"} if pp > 2 else {})
    return {by_stage[pp_rank]: name for pp_rank, name in wanted.items() if pp_rank in by_stage}


def _why(figure: str, report: FlightReport, plan: Plan, *, more: bool) -> str:
    """What is known to differ, by figure. `more`: the simulator found more than the planner."""
    flight = report.flight
    reasons: list[str] = []
    if figure == "traffic pp" and flight.precision in ("fp32", "tf32"):
        reasons.append("the stream between stages is float32, 4 bytes an element; the formula takes 2")
    if figure == "traffic tp" and flight.config.activation_checkpointing == "full":
        reasons.append("what is computed again stops before the last sum; the formula counts a whole forward pass")
    split = flight.parallel.pp > 1 and flight.parallel.schedule in SPLIT_BACKWARD
    if split and figure in ("traffic tp", "activations") and flight.config.activation_checkpointing != "none":
        reasons.append("a backward pass that is split computes again for each half, and keeps it until the second")
    elif split and figure == "traffic tp":
        reasons.append("weight gradients that are made apart gather their inputs again")
    if figure == "traffic dp":
        if flight.parallel.pp > 1 and flight.parallel.virtual_stages > 3:
            reasons.append("a rank of more than three stages gives gathered weights back and gathers them again")
        if more and flight.precision not in ("fp32", "tf32"):
            reasons.append("embedding, final norm and head are gathered in float32")
    if figure == "activations":
        reasons.append(
            "received streams and the backward pass's own tensors count as they live; the formula has a workspace"
        )
        if flight.config.objective.name == "mlm":
            reasons.append("logits are made of the masked tokens only")
        if flight.config.recompute.offload:
            reasons.append("offloaded activations are counted: the simulator has one memory")
    if figure == "weights and gradients":
        if more and flight.parallel.dp_shard * flight.parallel.cp > 1:
            reasons.append(
                "this rank's float32 weights are here, and with the optimizer in the formula; embedding and head are "
                "gathered in float32"
            )
        elif flight.parallel.pp > 1:
            reasons.append("gradients and gathered weights of a chunk come and go; the formula holds all of them")
        elif flight.parallel.ranks == 1 or plan.layout.dp * plan.layout.cp == 1:
            reasons.append("float32 weights are cast to 16 bits in every forward pass, and counted as activations")
        else:
            reasons.append("the peak is at another moment than the formula's sum of the most of each")
    if figure == "optimizer":
        reasons.append("the trainer keeps two float32 moments (and averages); the planner adds the master weights")
    if figure == "memory allocated":
        reasons.append("see the parts above")
    return "; ".join(reasons) or "not by anything that is known to differ"


def as_json(rows: list[Row]) -> list[dict[str, Any]]:
    """Plain values."""
    return [
        {
            "stage": row.stage,
            "rank": row.rank,
            "figure": row.figure,
            "simulated_bytes": row.simulated,
            "planned_bytes": row.planned,
            "ratio": row.ratio if row.planned else None,
            "why": row.why,
        }
        for row in rows
    ]
