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
    message: Array,
    ranks: Array,
    bandwidth: Array,
    passes: float,
    c: Coefficients,
    calls: Array = 1.0,
    sync: Array = 0.0,
) -> Array:
    """Seconds of `calls` ring collectives that together move `passes` times (q-1)/q of `message` bytes.

    `passes` is 2 for all-reduce, 1 for reduce-scatter and all-gather. All-reduce goes over to trees when latency
    binds (log q); gather and scatter are rings in NCCL up to 2.22: their latency is linear in the group. `sync` is what
    a call costs besides: the wait for the slowest host of the group.
    """
    q = np.maximum(ranks, 1.0)
    tree = 2.0 * np.ceil(np.log2(q)) * c.latency
    line = (q - 1.0) * c.hop_latency
    delay = np.minimum(2.0 * line, tree) if passes == 2.0 else line
    delay = delay + c.latency + sync
    return np.where(q > 1, passes * (q - 1) / q * message / bandwidth + calls * delay, 0.0)


def dispatch(
    token_bytes: Array, topk: Array, ranks: Array, inside: Array, intra: Array, nic: Array, c: Coefficients
) -> Array:
    """Seconds to send each token to its `topk` experts, spread evenly over `ranks`; combine costs the same.

    A token crosses to a far domain once however many of its experts live there (DeepSeek-V3 section 3.2.2), then
    spreads inside it: the number of distinct domains hit by topk draws out of N is N (1 - (1 - 1/N)^topk).
    """
    q = np.maximum(ranks, 1.0)
    near = np.minimum(inside, q)
    domains = np.maximum(q / near, 1.0)
    hit = domains * (1.0 - (1.0 - 1.0 / domains) ** np.maximum(topk, 1.0))
    local = token_bytes * topk * (near - 1.0) / near / (intra * c.intra_efficiency)
    remote = token_bytes * hit * (domains - 1.0) / domains / (nic * c.inter_efficiency)
    return np.where(q > 1, np.maximum(local, remote) + c.latency * np.ceil(np.log2(q)), 0.0)
