"""Time of collectives over one group, inside the fast domain or across it.

Ring algorithms (Thakur et al. 2005; NCCL): all-reduce moves 2(q-1)/q of the message, reduce-scatter, all-gather and
all-to-all (q-1)/q. A group with g ranks in each domain that spans several domains drives g network rails at once, so
its rate is min(inside, g * rail): the hierarchical bound.
"""

from __future__ import annotations

import numpy as np

from .cases import Array
from .coefficients import Coefficients


def group_bandwidth(ranks: Array, inside: Array, intra: Array, nic: Array, c: Coefficients) -> Array:
    """Bytes/s a rank achieves in a ring of `ranks`, `inside` of which share a fast domain."""
    local = intra * c.intra_efficiency
    rails = np.maximum(np.minimum(inside, ranks), 1.0) * nic * c.inter_efficiency
    return np.where(ranks <= inside, local, np.minimum(local, rails))


def ring(
    message: Array, ranks: Array, bandwidth: Array, passes: float, c: Coefficients, calls: Array = 1.0
) -> Array:
    """Seconds of `calls` ring collectives that together move `passes` times (q-1)/q of `message` bytes.

    `passes` is 2 for all-reduce, 1 for reduce-scatter and all-gather. All-reduce goes over to trees when latency
    binds (log q); gather and scatter are rings in NCCL up to 2.22: their latency is linear in the group.
    """
    q = np.maximum(ranks, 1.0)
    tree = 2.0 * np.ceil(np.log2(q)) * c.latency
    line = (q - 1.0) * c.hop_latency
    delay = np.minimum(2.0 * line, tree) if passes == 2.0 else np.minimum(line, 200.0 * c.latency)
    delay = delay + c.latency
    return np.where(q > 1, passes * (q - 1) / q * message / bandwidth + calls * delay, 0.0)


def all_to_all(message: Array, ranks: Array, inside: Array, intra: Array, nic: Array, c: Coefficients) -> Array:
    """Seconds of an all-to-all where each rank sends `message` bytes in all, spread evenly."""
    q = np.maximum(ranks, 1.0)
    near = np.minimum(inside, q)
    local = message * (near - 1) / q / (intra * c.intra_efficiency)
    remote = message * (q - near) / q / (nic * c.inter_efficiency)
    return np.where(q > 1, np.maximum(local, remote) + c.latency * np.ceil(np.log2(q)), 0.0)
