"""Many layouts at once: every quantity the cost formulas need, as numpy arrays that broadcast together.

A `Cases` holds one entry a candidate. A field may be a scalar (the same model and cluster for all, as in a search)
or an array (the rows of a table, as in an evaluation); formulas are written once for both.

Symbols follow the literature: layers L, hidden h, query heads a, key-value heads, head dimension e, feed-forward f,
vocabulary V, sequence s, micro-batch b. All sizes in elements, memory in bytes, rates in bytes/s or FLOP/s.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from enum import IntEnum
from typing import Any

import numpy as np

Array = Any  # float | numpy array; numpy broadcasting does the rest


class Schedule(IntEnum):
    """Pipeline schedules; NONE is one stage (pure data or tensor parallelism)."""

    NONE = 0
    GPIPE = 1
    ONE_F_ONE_B = 2
    INTERLEAVED = 3
    ZB_H1 = 4
    ZB_1P = 5
    ZB_H2 = 6
    ZB_2P = 7
    ZB_V = 8
    DUALPIPE = 9
    INTERLEAVED_ZB = 10
    DUALPIPE_V = 11


class Attention(IntEnum):
    """Attention kernels by generation; UNFUSED writes the score matrix to memory."""

    UNFUSED = 0
    FLASH1 = 1
    FLASH2 = 2
    FLASH3 = 3


@dataclass
class Cases:
    """Struct of arrays; see the module docstring for symbols."""

    # model
    layers: Array
    hidden: Array
    heads: Array
    kv_heads: Array
    head_dim: Array
    ffn: Array
    vocab: Array
    gated: Array
    tied: Array
    experts: Array
    topk: Array
    expert_ffn: Array
    shared_ffn: Array
    dense_layers: Array
    mla: Array  # 1: multi-head latent attention (DeepSeek)
    q_lora: Array
    kv_lora: Array
    rope_dim: Array
    value_dim: Array
    parallel_block: Array
    window: Array  # sliding-window length; 0 = full attention
    window_share: Array  # share of the layers that use the window
    # work
    seq: Array
    global_batch: Array
    dropout: Array
    # layout
    tp: Array
    pp: Array
    dp: Array
    cp: Array
    ep: Array
    chunks: Array
    micro_batch: Array
    zero: Array
    shard_group: Array  # ranks a ZeRO shard is spread over (dp * cp unless hybrid)
    schedule: Array
    recompute: Array  # share of the layers whose forward runs again in backward, 0..1
    recompute_light: Array  # 1: norms, activation and other memory-bound work run again, multiplies are kept
    recompute_core: Array  # 1: only the attention core runs again (selective, Korthikanti 2022)
    # arithmetic
    peak_linear: Array
    peak_half: Array
    limit_linear: Array
    limit_half: Array
    linear_bytes: Array
    quantised: Array  # 0 bf16/fp16, 1 per-tensor fp8/int8, 2 block-scaled (mxfp8, nvfp4)
    width: Array  # bytes of an activation element, in halves of two: 1 for 16 bits, 2 for 32
    param_bytes: Array  # stored compute copy of a weight, bytes
    grad_bytes: Array  # bytes of a gradient as reduced between ranks
    grad_kept: Array  # bytes of a gradient as kept between micro-batches
    bucket_bytes: Array  # communication buckets of the data-parallel engine
    optimizer_bytes: Array  # master weight + moments, bytes a parameter
    # hardware
    memory_bandwidth: Array
    memory_bytes: Array
    units: Array
    intra_bandwidth: Array
    domain: Array
    nic_bandwidth: Array  # bytes/s a GPU, one direction
    pcie_bandwidth: Array
    # software
    attention: Array
    sequence_parallel: Array
    overlap_grad: Array
    overlap_param: Array
    overlap_tp: Array
    overlap_p2p: Array
    overlap_ep: Array
    scatter_gather: Array
    fusion: Array  # 0 eager, 1 fused kernels, 2 compiled
    slow_host: Array  # 1: the host launches kernels slowly (Python around every operation)
    gathers: Array  # data-parallel collectives a layer: 0 one flat buffer, 1 by block, more by tensor
    spread: Array  # stages cut by layers (0), by items with embedding and head (1), by cost (2), by stage_split (3)
    overlap_wgrad: Array  # 1: tensor-parallel gradient traffic runs behind the weight gradient
    graphs: Array  # 1: CUDA graphs, no per-kernel host work
    fused_loss: Array
    expandable: Array  # 1: the allocator grows segments in place and fragments less
    derate: Array  # known slowness of a site: 1.03 = 3 % more time, from its own notes
    reshard: Array  # ZeRO-3: parameters freed after forward and gathered again in backward
    # a machine without accelerators (`Processor`); nothing elsewhere
    process_bytes: Array = 0.0
    rank_bytes: Array = 0.0
    allocator_share: Array = 0.0
    neighbours: Array = 0.0
    attention_tile: Array = 0.0
    attention_kept_keys: Array = 0.0

    @property
    def gpus(self) -> Array:
        return self.tp * self.pp * self.dp * self.cp

    @property
    def rank_memory(self) -> Array:
        """Bytes that are there for one rank: those of its device, or its part of the machine that ranks share."""
        together = np.where(np.asarray(self.process_bytes) > 0, np.minimum(self.gpus, self.domain), 1.0)
        return self.memory_bytes / together

    @property
    def microbatches(self) -> Array:
        return np.ceil(self.global_batch / (self.dp * self.micro_batch))

    @property
    def tokens(self) -> Array:
        """Tokens of one micro-batch on one context-parallel rank."""
        return self.micro_batch * self.seq / self.cp

    @property
    def q_dim(self) -> Array:
        return self.heads * self.head_dim

    @property
    def kv_local(self) -> Array:
        """Key-value heads of one tensor-parallel rank (replicated when there are fewer heads than ranks)."""
        return np.maximum(self.kv_heads / self.tp, 1.0)


NAMES = tuple(f.name for f in fields(Cases))
DEFAULTS = {f.name: f.default for f in fields(Cases) if f.default is not MISSING}


def stack(rows: list[dict[str, float]]) -> Cases:
    """One array a field from a list of rows; KeyError names a missing field that has no default."""
    full: list[dict[str, Any]] = [{**DEFAULTS, **row} for row in rows]
    return Cases(**{name: np.array([row[name] for row in full], dtype=float) for name in NAMES})


def take(cases: Cases, index: Any) -> Cases:
    """The cases at `index`; scalar fields stay scalars."""
    picked = {n: (v[index] if isinstance(v := getattr(cases, n), np.ndarray) and v.ndim else v) for n in NAMES}
    return Cases(**picked)
