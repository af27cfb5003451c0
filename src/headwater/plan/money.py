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


def cost(cluster: ClusterSpec, days: float) -> Cost:
    """Cost of holding the whole cluster for `days`."""
    hours = cluster.gpus * 24.0 * days
    rented = hours * cluster.price_per_gpu_hour
    watts = cluster.gpu.watts * UTILISATION + cluster.host_watts_per_gpu
    low, high = cluster.all_in
    return Cost(hours, rented, rented * low, rented * high, hours * watts * cluster.pue / 1000.0)
