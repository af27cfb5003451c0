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


def ring(message: Array, ranks: Array, bandwidth: Array, passes: float, c: Coefficients) -> Array:
    """Seconds of a ring collective that moves `passes` times (q-1)/q of `message` bytes (2 for all-reduce).

    Latency grows with the logarithm of the group: NCCL goes over to trees when latency binds.
    """
    q = np.maximum(ranks, 1.0)
    steps = np.ceil(np.log2(q))
    return np.where(q > 1, passes * (q - 1) / q * message / bandwidth + passes * steps * c.latency, 0.0)


def all_to_all(message: Array, ranks: Array, inside: Array, intra: Array, nic: Array, c: Coefficients) -> Array:
    """Seconds of an all-to-all where each rank sends `message` bytes in all, spread evenly."""
    q = np.maximum(ranks, 1.0)
    near = np.minimum(inside, q)
    local = message * (near - 1) / q / (intra * c.intra_efficiency)
    remote = message * (q - near) / q / (nic * c.inter_efficiency)
    return np.where(q > 1, np.maximum(local, remote) + c.latency * np.ceil(np.log2(q)), 0.0)
