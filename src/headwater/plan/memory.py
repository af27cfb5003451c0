"""Bytes on one GPU, by component, for the first, a middle and the last pipeline stage.

Three totals, because sources read three different gauges: `allocated` (what tensors take), `reserved` (what the
caching allocator holds), `device` (what nvidia-smi shows: plus context and communicators). Formulas: ZeRO
(Rajbhandari 2020), activations (Korthikanti 2022, Table 2, generalised to grouped heads, gated layers and experts).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .cases import Array, Attention, Cases
from .counts import ffn_parameters, head_units, layer_parameters_local
from .schedules import folded_here, in_flight, splits_here, stage_layers

MIB, GIB = 2.0**20, 2.0**30
# The caching allocator fragments with the activations that come and go: more where a pipeline keeps several
# micro-batches alive, less with expandable segments. Reserved / allocated is 1.03 to 1.09 on 43 B200 runs (SimuMax);
# the shares below give that, and what BLOOM's and nanotron's runs show.
FRAGMENTED_SHARE, FRAGMENTED_PIPELINE, FRAGMENTED_EXPANDABLE = 0.06, 0.30, 0.15
LARGEST_WEIGHT_BYTES = 5.25  # temporaries a byte of the widest weight: 22 B200 runs with allocated memory (SimuMax)
CONTEXT_BYTES = 0.9 * GIB  # CUDA context and libraries; 0.5 to 1.8 GiB reported
COMMUNICATOR_BYTES = 0.35 * GIB  # buffers of one NCCL communicator; assumed
FITS_SHARE = 0.94  # of device memory (SimuMax mem_factor)

COMPONENTS = ("weights", "gradients", "optimizer", "activations", "logits", "gathered", "workspace")


@dataclass
class Memory:
    """Bytes by component of the fullest stage (shape of the cases), and all stages' allocated totals [3, ...]."""

    parts: dict[str, Array]
    allocated: Array
    reserved: Array
    device: Array
    stages: list[dict[str, Array]]

    def fits(self, x: Cases) -> Array:
        return self.device <= FITS_SHARE * x.rank_memory


def activation_bytes(x: Cases) -> tuple[Array, Array]:
    """Bytes one layer keeps for backward, one micro-batch: (kept without recompute, kept when recomputed)."""
    t = x.tokens
    share = np.where(x.experts > 0, 1.0 - x.dense_layers / x.layers, 0.0)
    sp = np.where(x.sequence_parallel > 0, x.tp, 1.0)
    drop = x.dropout
    # Norm inputs, linear inputs (fp8 keeps them in one byte) and dropout masks: split only by sequence parallelism.
    linear_input = np.where(x.quantised > 0, 1.0, 2.0)
    again = (np.asarray(x.recompute_light) > 0) & ~splits_here(x)
    outside = (4.0 + np.where(again, 0.0, 2.0 * linear_input) + 2.0 * drop) * x.hidden
    q_width = np.where(x.mla > 0, x.heads * x.head_dim, x.q_dim)
    o_width = np.where(x.mla > 0, x.heads * x.value_dim, x.q_dim)
    kv_width = np.where(x.mla > 0, x.heads * (x.head_dim + x.value_dim), 2.0 * x.kv_local * x.tp * x.head_dim)
    latent = np.where(x.mla > 0, 2.0 * (x.q_lora + x.kv_lora + x.rope_dim) * 2.0, 0.0)
    inside = 2.0 * q_width + linear_input * o_width + 2.0 * kv_width + 4.0 * x.heads
    product = np.where(again, 0.0, linear_input)
    per_ffn = np.where(x.gated > 0, 4.0 + product, 2.0 + product)
    dense = per_ffn * x.ffn
    score = np.where(x.attention == Attention.UNFUSED, (4.0 + drop) * x.heads * x.seq, 0.0)
    score = np.where(x.recompute_core > 0, 0.0, score)
    attention = t * (outside / sp + latent + (inside + score) / x.tp)
    # MoE: dispatched copies of the input and of the output, expert activations, shared expert, router.
    routed = x.topk * (per_ffn * x.expert_ffn + 2.0 * linear_input * x.hidden)
    sparse = (routed + per_ffn * x.shared_ffn) / x.tp + 8.0 * x.experts / np.maximum(sp, 1.0)
    kept = attention + t * (dense / x.tp * (1.0 - share) + sparse * share)
    # This project's trainer, as its flight simulator counts it: a float32 stream; whole inputs of column-parallel
    # products, or, where they are gathered again, shares of row-parallel sums; silu, its input and both factors.
    heads_part = (2.0 * q_width + 2.0 * kv_width + 2.0 * o_width) / x.tp
    streams = np.where(again, 4.0, 8.0) / x.width * x.hidden / sp
    whole = 4.0 * x.hidden / np.where(again, sp, 1.0)
    inner = np.where(again, 4.0, 8.0) * x.ffn / x.tp
    own = (np.asarray(x.spread) > 2) & (np.asarray(x.experts) == 0)
    # On processors, the probabilities of short windows: whole tiles of half the scores, in a weight product's width.
    keys = np.where(x.seq <= x.attention_kept_keys, (x.seq + x.attention_tile) / 2.0, 0.0)
    probabilities = 2.0 * x.heads / x.tp * keys
    kept = np.where(own, t * (streams + heads_part + whole + inner), kept) + t * probabilities
    least = np.where(own, 4.0 / x.width, 2.0) * x.hidden / sp
    return x.width * kept, x.width * t * least


def _stage(x: Cases, layers: Array, index: Array, is_first: Array, is_last: Array) -> dict[str, Array]:
    table = x.vocab * x.hidden / x.tp
    tables = np.where(is_first & is_last, np.where(x.tied > 0, 1.0, 2.0), (is_first | is_last) * 1.0)
    group = np.maximum(x.shard_group, 1.0)
    expert_group = np.where((x.experts > 0) & (x.ep > 1), np.maximum(x.dp * x.cp * x.tp / x.ep, 1.0), group)
    share = np.where(x.experts > 0, 1.0 - x.dense_layers / x.layers, 0.0)
    sparse_layers = np.where(is_first & ~is_last, np.maximum(layers - x.dense_layers, 0.0), layers)
    sparse_layers = np.where(is_first & is_last, layers * share, np.minimum(sparse_layers, x.layers - x.dense_layers))
    experts = (
        np.where(x.experts > 0, sparse_layers, 0.0)
        * ffn_parameters(x, x.expert_ffn)
        * x.experts
        / np.where(x.ep > 1, x.ep, x.tp)
    )
    usual = layers * share * ffn_parameters(x, x.expert_ffn) * x.experts / np.where(x.ep > 1, x.ep, x.tp)
    others = layers * layer_parameters_local(x) - usual + tables * table
    held = others + experts
    sharded = others / group + experts / expert_group

    # The trainer's pipelines keep a stage's parameters and gradients whole for the step, whatever the ZeRO stage.
    whole = (np.asarray(x.spread) > 2) & (np.asarray(x.pp) > 1)
    three = (x.zero >= 3) & ~whole
    weights = np.where(three, 4.0 * sharded, x.param_bytes * held)
    gradients = np.where(
        three, 4.0 * sharded, np.where((x.zero >= 2) & ~whole, x.grad_kept * sharded, x.grad_kept * held)
    )
    moments = np.where(three, x.optimizer_bytes - 4.0, x.optimizer_bytes)
    optimizer = moments * np.where(x.zero >= 1, sharded, held)
    block = layer_parameters_local(x)
    live = 2.0 * x.param_bytes * np.maximum(block, table * tables) + x.grad_bytes * np.maximum(block, table * tables)
    gathered = np.where(three & (group > 1), live + np.where(x.reshard > 0, 0.0, x.param_bytes * held), 0.0)

    kept, again = activation_bytes(x)
    flights = in_flight(x.schedule, x.pp, x.chunks, x.microbatches, index)
    share = np.where(splits_here(x), 0.0, x.recompute)
    per_layer = share * again + (1.0 - share) * kept
    working = np.where(x.recompute > 0, kept, 0.0)
    embedding = np.where(is_first, 2.0 * x.tokens * x.hidden * np.where(x.pp > 1, flights, 1.0), 0.0)
    embedding = embedding / np.where(x.sequence_parallel > 0, x.tp, 1.0)
    activations = flights * layers * per_layer + working + embedding
    per_logit = np.where(x.fused_loss > 0, 4.0, 10.0)
    logits = np.where(is_last, x.tokens * (x.vocab / x.tp * per_logit + 4.0 * x.hidden), 0.0)
    # The optimizer runs when no logits and no gathered blocks are alive; its temporaries hide below them.
    largest = x.hidden * np.maximum((1.0 + x.gated) * x.ffn, x.q_dim) / x.tp
    workspace = 0.06 * GIB + 2.0 * x.tokens * x.hidden * np.where(x.tp > 1, 2.0, 0.0) + x.bucket_bytes
    workspace = workspace + LARGEST_WEIGHT_BYTES * largest
    return {
        "weights": weights,
        "gradients": gradients,
        "optimizer": optimizer,
        "activations": activations,
        "logits": logits,
        "gathered": gathered,
        "workspace": workspace + 0.0 * weights,
    }


def memory(x: Cases) -> Memory:
    """Memory of each stage and of the fullest one."""
    first, full, last = stage_layers(x.layers, x.pp, x.spread, head_units(x), x.chunks, x.schedule)
    several, folded = np.asarray(x.pp) > 1, folded_here(x)
    stages = [
        _stage(x, first, 0.0 * x.pp, ~folded, ~several),
        _stage(x, full, np.minimum(1.0, x.pp - 1.0), ~several, ~several),
        _stage(x, last, x.pp - 1.0, ~several | folded, np.asarray(True)),
    ]
    totals = np.stack(np.broadcast_arrays(*(sum(stage.values()) for stage in stages)))
    fullest = np.argmax(totals, axis=0)
    parts = {
        name: np.take_along_axis(
            np.stack(np.broadcast_arrays(*(stage[name] + 0.0 * totals[0] for stage in stages))), fullest[None], 0
        )[0]
        for name in COMPONENTS
    }
    allocated = totals.max(axis=0)
    groups = 1.0 + (x.tp > 1) + (x.pp > 1) * 2.0 + (x.dp > 1) + (x.cp > 1) + (x.ep > 1) * 2.0
    pipeline = np.where(x.expandable > 0, FRAGMENTED_EXPANDABLE, FRAGMENTED_PIPELINE)
    loose = np.where(several, pipeline, FRAGMENTED_SHARE)
    reserved = allocated + loose * (parts["activations"] + parts["logits"])
    device = reserved + CONTEXT_BYTES + groups * COMMUNICATOR_BYTES
    # A process on a processor: no context, no caching allocator, and the workspace is inside the activations' share.
    tensors = (allocated - parts["workspace"]) * (1.0 + x.allocator_share)
    process = x.process_bytes + np.where(x.gpus > 1, x.rank_bytes, 0.0)
    device = np.where(x.process_bytes > 0, process + tensors, device)
    return Memory(parts, allocated, reserved, device, stages)
