"""Failures, checkpoints and what they cost a long run.

Young's first-order optimum, Daly's exact expectation (J. T. Daly, 2006). Anchors for the failure rate: Llama 3 405B had
419 unexpected stops in 54 days on 16,384 H100 (one in 50.7 thousand GPU-hours); Meta's research clusters one in 8.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .cluster import ClusterSpec

STATE_BYTES = 14.0  # a parameter: bf16 weights 2, fp32 master 4, Adam moments 8
SHARED_SHARE = 0.02  # of an asynchronous save that still stalls training (barrier, copy not hidden); assumed


def young(save_seconds: float, mtbf_seconds: float) -> float:
    """Seconds of work between checkpoints: sqrt(2 C M) (Young, 1974)."""
    return math.sqrt(2.0 * save_seconds * mtbf_seconds)


def daly(save_seconds: float, mtbf_seconds: float) -> float:
    """Daly's higher-order optimum; the mean time between failures where a save takes longer than twice that."""
    if save_seconds >= 2.0 * mtbf_seconds:
        return mtbf_seconds
    x = save_seconds / (2.0 * mtbf_seconds)
    return young(save_seconds, mtbf_seconds) * (1.0 + math.sqrt(x) / 3.0 + x / 9.0) - save_seconds


def expected_time(work: float, interval: float, save: float, restart: float, mtbf: float) -> float:
    """Daly's exact expectation of wall seconds for `work` seconds, saving every `interval`, failures exponential.

    Infinite when a segment can hardly ever finish.
    """
    exponent = (interval + save) / mtbf
    if exponent > 700.0:
        return math.inf
    return mtbf * math.exp(min(restart / mtbf, 700.0)) * math.expm1(exponent) * work / interval


@dataclass(frozen=True)
class Reliability:
    """Per cluster: seconds between failures, of a save, of lost time a failure; the interval and share of time kept."""

    mtbf_seconds: float
    save_seconds: float
    stall_seconds: float
    restart_seconds: float
    interval_seconds: float
    goodput: float
    checkpoint_bytes: float

    def failures(self, wall_seconds: float) -> float:
        return wall_seconds / self.mtbf_seconds


def reliability(cluster: ClusterSpec, parameters: float, mtbf_hours: float) -> Reliability:
    """For `parameters` in training on all GPUs of the cluster, at `mtbf_hours` GPU-hours between failures.

    Saves are asynchronous: training stalls for the copy to host memory, the write goes on behind it.
    """
    mtbf = mtbf_hours * 3600.0 / cluster.gpus
    size = STATE_BYTES * parameters
    rate = min(cluster.storage_bandwidth, cluster.nodes * cluster.storage_node_bandwidth)
    save = size / rate
    stall = size / cluster.gpus / cluster.gpu.pcie_bandwidth + SHARED_SHARE * save
    # A save must be over before the next begins; what is lost with a failure counts from the last finished one.
    interval = max(daly(stall, mtbf), save)
    restart = cluster.restart_minutes * 60.0 + size / rate
    wall = expected_time(1.0, interval, stall, restart, mtbf)
    return Reliability(mtbf, save, stall, restart, interval, 1.0 / wall if wall < math.inf else 0.0, size)
