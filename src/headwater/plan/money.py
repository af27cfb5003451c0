"""What a run costs: rented GPUs, the whole programme around them, and energy.

Two figures are always shown apart. `rented` is GPU-hours times the price. `all_in` multiplies it by 3 to 5 for network,
storage, staff, experiments and failed runs: the rule of thumb under which the field's table reproduces (7B on 1T tokens
400-800 thousand dollars, 175B 10-20 million). Market pages put the GPUs at 60-70 % of a cloud bill (x1.4-1.7).
"""

from __future__ import annotations

from dataclasses import dataclass

from .cluster import ClusterSpec

UTILISATION = 0.85  # mean power of a training GPU / its limit; assumed


@dataclass(frozen=True)
class Cost:
    """USD and kilowatt-hours."""

    gpu_hours: float
    rented: float
    all_in_low: float
    all_in_high: float
    energy_kwh: float


USUAL_MFU = (0.45, 0.40)  # of the bf16 peak, before and since Hopper: what the field's table of costs assumes
NEW_PEAK = 6e14


def rule_of_thumb(cluster: ClusterSpec, parameters: float, tokens: float) -> Cost:
    """The field's back of the envelope: 6 N D at a usual utilisation, whatever the layout.

    7B parameters on 1T tokens come to 83 thousand A100-hours. A tuned layout may need a third less, a bad network twice
    as much: that is what the plan's own figure says.
    """
    peak = cluster.gpu.peak_flops(cluster.gpu.half)
    mfu = USUAL_MFU[0] if peak < NEW_PEAK else USUAL_MFU[1]
    return cost(cluster, 6.0 * parameters * tokens / (cluster.gpus * peak * mfu) / 86400.0)


def cost(cluster: ClusterSpec, days: float) -> Cost:
    """Cost of holding the whole cluster for `days`."""
    hours = cluster.gpus * 24.0 * days
    rented = hours * cluster.price_per_gpu_hour
    watts = cluster.gpu.watts * UTILISATION + cluster.host_watts_per_gpu
    low, high = cluster.all_in
    return Cost(hours, rented, rented * low, rented * high, hours * watts * cluster.pue / 1000.0)
