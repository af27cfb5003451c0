"""Seconds of one optimizer step, by component, for many layouts at once.

The step is the pipeline of micro-batches (arithmetic + tensor, context and expert parallel traffic, or the host where
it launches slower than the GPU runs), its bubble and transfers, then exposed data-parallel traffic, the optimizer and
a fixed part. Components sum to the total. In: `Cases`; out: `StepTime`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from . import compute
from .cases import Array, Cases, Schedule
from .coefficients import Coefficients
from .collectives import dispatch, group_bandwidth, ring
from .counts import head_units, layer_parameters_local
from .schedules import bubble_seconds, stage_layers

TWO_OR_MORE_CHUNKS = (Schedule.INTERLEAVED, Schedule.INTERLEAVED_ZB, Schedule.ZB_V, Schedule.DUALPIPE_V)
PAIRED_SHOWN = (
    0.1  # of expert traffic under DualPipe: "fully hidden" (DeepSeek-V3 report), a tenth for the ramps; assumed
)
COMPONENTS = (
    "gemm", "attention", "memory_bound", "recompute", "head", "host", "tp", "cp", "ep",
    "bubble", "pp", "dp", "optimizer", "fixed", "straggler",
)  # fmt: skip


@dataclass
class StepTime:
    """Seconds of a step, by component (names in COMPONENTS); `total` is their sum."""

    parts: dict[str, Array]
    total: Array
    bubble_fraction: Array
    stage_seconds: Array  # the slowest stage, one micro-batch, forward and backward
    forward_seconds: Array
    dgrad_seconds: Array
    wgrad_seconds: Array

    def tokens_per_second_per_gpu(self, x: Cases) -> Array:
        return x.global_batch * x.seq / self.total / x.gpus


def smooth_max(a: Array, b: Array, power: float = 6.0) -> Array:
    """A maximum with a soft knee: two overlapping streams never hide each other perfectly."""
    top = np.maximum(a, b)
    low = np.minimum(a, b)
    return top * (1.0 + (low / np.maximum(top, 1e-30)) ** power) ** (1.0 / power)


def _tensor_parallel(x: Cases, c: Coefficients, wgrad: Array) -> tuple[Array, Array]:
    """Exposed seconds of tensor-parallel traffic of a layer and micro-batch: forward, backward. Behind the weight
    gradients there is room for as long as they take, `wgrad` seconds."""
    message = 2.0 * x.width * x.tokens * x.hidden
    rate = group_bandwidth(x.tp, x.domain, x.intra_bandwidth, x.nic_bandwidth, c)
    one = ring(message, x.tp, rate, 2.0, c, sync=c.tp_sync)
    pairs = np.where(x.parallel_block > 0, 1.0, 2.0)
    shown = np.where(x.overlap_tp > 0, 1.0 - c.tp_hidden, 1.0)
    # Sequence parallelism gathers the layer input once more in backward, behind the input gradient: half shows.
    again = np.where(x.sequence_parallel > 0, 0.25, 0.0)
    behind = np.where((x.overlap_wgrad > 0) & (x.overlap_tp == 0), np.minimum(c.wgrad_hidden * pairs * one, wgrad), 0.0)
    return pairs * one * shown, pairs * one * shown * (1.0 + again) - behind


def _context_parallel(x: Cases, c: Coefficients, core: compute.Pass) -> tuple[Array, Array]:
    """Exposed seconds of the key-value ring: what attention arithmetic does not cover."""
    width = np.where(x.mla > 0, x.heads / x.tp * (x.head_dim + x.value_dim), 2.0 * x.kv_local * x.head_dim)
    message = 2.0 * x.width * x.tokens * width * (x.cp - 1.0)
    inside = np.maximum(x.domain / x.tp, 1.0)
    rate = group_bandwidth(x.cp, inside, x.intra_bandwidth, x.nic_bandwidth, c)
    forward = np.where(x.cp > 1, message / rate + (x.cp - 1.0) * c.latency, 0.0)
    first = forward / np.maximum(x.cp, 1.0)
    exposed_forward = np.where(x.cp > 1, np.maximum(forward - core.forward, first), 0.0)
    exposed_backward = np.where(x.cp > 1, np.maximum(2.0 * forward - core.backward, first), 0.0)
    return exposed_forward, exposed_backward


def _expert_parallel(x: Cases, c: Coefficients) -> Array:
    """Seconds of dispatch and combine of a MoE layer, one direction (backward costs the same)."""
    inside = np.maximum(x.domain / x.tp, 1.0)
    sent = 2.0 * x.tokens * x.hidden / x.tp
    one = dispatch(sent, x.topk, x.ep, inside, x.intra_bandwidth, x.nic_bandwidth, c)
    shown = np.where(x.overlap_ep > 0, 1.0 - c.expert_hidden, 1.0)
    # DualPipe runs one micro-batch's forward beside another's backward so that this traffic is behind arithmetic.
    paired = (x.schedule == Schedule.DUALPIPE) | (x.schedule == Schedule.DUALPIPE_V)
    shown = np.where(paired, PAIRED_SHOWN, shown)
    return np.where((x.experts > 0) & (x.ep > 1), 2.0 * one * shown, 0.0)


def step_time(x: Cases, c: Coefficients) -> StepTime:
    """Predict one step; see the module docstring. Arrays broadcast over the fields of `x`."""
    m = x.microbatches
    core = compute.attention_core(x, c)
    proj = compute.attention_projections(x, c)
    ffn = compute.dense_ffn(x, c)
    light = compute.memory_bound(x, c, moe=False)
    is_moe = np.asarray(x.experts) > 0
    share = np.where(is_moe, 1.0 - x.dense_layers / x.layers, 0.0)
    if np.any(is_moe):
        sparse, sparse_light = compute.expert_ffn(x, c), compute.memory_bound(x, c, moe=True)
        ffn = ffn.scaled(1.0 - share) + sparse.scaled(share)
        light = light.scaled(1.0 - share) + sparse_light.scaled(share)
    gemm = proj + ffn
    layer = gemm + core + light
    again = compute.recompute_forward(x, layer, core, light)
    tp_f, tp_b = _tensor_parallel(x, c, layer.wgrad)
    tp_b = tp_b + x.recompute * tp_f
    cp_f, cp_b = _context_parallel(x, c, core)
    cp_b = cp_b + x.recompute * cp_f
    ep_one = _expert_parallel(x, c) * share
    ep_f, ep_b = ep_one, ep_one * (1.0 + x.recompute)

    # The host: forward, forward again, and a backward launched by the C++ engine at about the forward's price.
    host_f = compute.host_layer(x, c)
    host_b = host_f * (1.0 + x.recompute)
    gpu_f = layer.forward + tp_f + cp_f + ep_f
    gpu_b = layer.dgrad + layer.wgrad + again + tp_b + cp_b + ep_b
    wait = np.maximum(smooth_max(gpu_f + gpu_b, host_f + host_b) - gpu_f - gpu_b, 0.0)
    wait_f = wait * host_f / (host_f + host_b)

    top = compute.head(x, c)
    tp_rate = group_bandwidth(x.tp, x.domain, x.intra_bandwidth, x.nic_bandwidth, c)
    head_tp = 2.0 * ring(2.0 * x.tokens * x.hidden, x.tp, tp_rate, 2.0, c)
    head_seconds = top.forward + top.backward + head_tp

    first, full, last = stage_layers(x.layers, x.pp, x.spread, head_units(x), x.chunks, x.schedule)
    per_layer_f = gpu_f + wait_f
    per_layer_b = layer.dgrad + again + tp_b + cp_b + ep_b + (wait - wait_f)
    per_layer_w = layer.wgrad
    per_layer = per_layer_f + per_layer_b + per_layer_w

    # Data parallel with sharded parameters runs behind the layers, every micro-batch.
    dp_layer, dp_tail = _data_parallel(x, c, layer, again, gpu_f, gpu_b, wait, full)
    per_layer_dp = per_layer + dp_layer

    stage_mid = full * per_layer_dp
    stage_last = last * per_layer_dp + head_seconds
    slowest = np.where(x.pp > 1, np.maximum(np.maximum(stage_mid, stage_last), first * per_layer_dp), stage_last)
    every = x.layers * per_layer_dp + head_seconds
    mean = np.where(x.pp > 1, every / x.pp, stage_last)
    work = np.maximum(m - 1.0, 0.0) * slowest + mean
    scale = mean / np.maximum(per_layer, 1e-30)
    idle = bubble_seconds(x.schedule, x.pp, x.chunks, per_layer_f * scale, per_layer_b * scale, per_layer_w * scale)

    # Transfers between stages.
    hop = 2.0 * x.width * x.tokens * x.hidden / np.where(x.scatter_gather > 0, x.tp, 1.0)
    stage_ranks = x.tp * x.dp * x.cp
    near = stage_ranks * x.pp <= x.domain
    rate = np.where(near, x.intra_bandwidth * c.intra_efficiency, x.nic_bandwidth * c.inter_efficiency)
    crossings = np.where(np.isin(x.schedule, TWO_OR_MORE_CHUNKS), np.maximum(x.chunks, 1.0), 1.0)
    one_hop = hop / rate + c.latency
    gather = np.where(
        (x.scatter_gather > 0) & (x.sequence_parallel == 0),
        ring(2.0 * x.tokens * x.hidden, x.tp, tp_rate, 1.0, c),
        0.0,
    )
    shown = np.where(x.overlap_p2p > 0, 1.0 - c.tp_hidden, 1.0) * c.p2p_exposed
    pp = np.where(x.pp > 1, 2.0 * (one_hop + gather) * (m * crossings * shown + (x.pp - 1.0)), 0.0)

    held = _parameters_held(x, first, full, last)
    sharded = np.where(x.zero >= 1, held / x.shard_group, held)
    optimizer = sharded * (16.0 + 2.0 * x.grad_bytes + 2.0 * x.optimizer_bytes) / 2.0
    optimizer = optimizer / (x.memory_bandwidth * c.memory_efficiency)
    fixed = c.host_step + 0.0 * m

    share_of = {
        "gemm": gemm.forward + gemm.backward,
        "attention": core.forward + core.backward,
        "memory_bound": light.forward + light.backward,
        "recompute": again,
        "host": wait,
        "tp": tp_f + tp_b,
        "cp": cp_f + cp_b,
        "ep": ep_f + ep_b,
        "dp": dp_layer,
    }
    # A mean stage's layers; what the slowest stage takes beyond them (head, uneven layers) is the head's.
    layers_here = x.layers / x.pp
    parts = {name: m * layers_here * value for name, value in share_of.items()}
    parts["head"] = work - m * layers_here * per_layer_dp
    parts["dp"] = parts["dp"] + dp_tail
    parts |= {"bubble": idle, "pp": pp, "optimizer": optimizer, "fixed": fixed}
    before = work + dp_tail + idle + pp + optimizer + fixed
    # Ranks on the cores of one machine share its memory's bandwidth and last cache.
    others = (np.minimum(x.gpus, x.domain) - 1.0) / np.maximum(x.domain - 1.0, 1.0)
    slower = c.straggler * (x.gpus / 1024.0) ** c.straggler_power + x.derate - 1.0 + x.neighbours * others
    parts["straggler"] = before * slower
    total = before + parts["straggler"]
    return StepTime(parts, total, idle / total, slowest, per_layer_f * scale, per_layer_b * scale, per_layer_w * scale)


def _parameters_held(x: Cases, first: Array, full: Array, last: Array) -> Array:
    """Parameters the most loaded stage holds after tensor, pipeline and expert parallelism."""
    layer = layer_parameters_local(x)
    table = x.vocab * x.hidden / x.tp
    one_stage = x.layers * layer + table * np.where(x.tied > 0, 1.0, 2.0)
    return np.where(x.pp > 1, np.maximum(full * layer, np.maximum(first, last) * layer + table), one_stage)


def _data_parallel(
    x: Cases, c: Coefficients, layer: compute.Pass, again: Array, gpu_f: Array, gpu_b: Array, wait: Array, full: Array
) -> tuple[Array, Array]:
    """Exposed data-parallel seconds: a layer and micro-batch (ZeRO-3), and once a step (the rest)."""
    held = layer_parameters_local(x)
    ranks = x.dp * x.cp
    inside = np.maximum(x.domain / x.tp, 1.0)
    rate = group_bandwidth(ranks, inside, x.intra_bandwidth, x.nic_bandwidth, c)
    shard_rate = group_bandwidth(x.shard_group, inside, x.intra_bandwidth, x.nic_bandwidth, c)
    three = x.zero >= 3
    gather = ring(x.param_bytes * held, x.shard_group, shard_rate, 1.0, c, np.maximum(x.gathers, 1.0))
    scatter = ring(x.grad_bytes * held, x.shard_group, shard_rate, 1.0, c, np.maximum(x.gathers, 1.0))
    forward_comm = gather
    # Without a prefetcher a block is gathered once more for its recomputed forward, and nothing is hidden.
    alone = x.overlap_param == 0
    again_comm = np.where(three & (x.reshard > 0), gather * (1.0 + alone * x.recompute), 0.0)
    backward_comm = again_comm + scatter
    # Overlapped streams: the longer one binds, and the kernels of one slow the other.
    f, b = gpu_f, gpu_b + wait
    slow_f = np.where(
        alone, forward_comm, smooth_max(f, forward_comm) + c.interference * np.minimum(f, forward_comm) - f
    )
    slow_b = np.where(
        alone, backward_comm, smooth_max(b, backward_comm) + c.interference * np.minimum(b, backward_comm) - b
    )
    # ZeRO-2 keeps only shards of the gradients, so each micro-batch scatters its own; a pipeline adds them up whole.
    two = (x.zero == 2) & (np.asarray(x.pp) <= 1)
    a_layer = np.where(ranks > 1, np.where(three, slow_f + slow_b, np.where(two, slow_b, 0.0)), 0.0)

    stage = full * held + x.vocab * x.hidden / x.tp * np.where(x.pp > 1, 1.0, 2.0 - x.tied)
    reduce_passes = np.where(x.zero >= 1, 1.0, 2.0)
    calls = 1.0 + np.where(x.zero >= 1, full * x.gathers, 0.0)
    reduce = ring(x.grad_bytes * stage, ranks, rate, 1.0, c, calls) * reduce_passes
    regather = np.where(x.zero >= 1, ring(x.param_bytes * stage, ranks, rate, 1.0, c, calls), 0.0)
    # Hybrid: scattered inside the shard group, then each shard is summed over the copies of the group.
    copies = ranks / x.shard_group
    hybrid = (x.zero >= 1) & (copies > 1)
    far = group_bandwidth(copies, np.maximum(inside / x.shard_group, 1.0), x.intra_bandwidth, x.nic_bandwidth, c)
    between = ring(x.grad_bytes * stage / x.shard_group, copies, far, 2.0, c)
    near = ring(x.grad_bytes * stage, x.shard_group, shard_rate, 1.0, c, calls)
    back = ring(x.param_bytes * stage, x.shard_group, shard_rate, 1.0, c, calls)
    scattered = three | two
    reduce = np.where(hybrid, between + np.where(scattered, 0.0, near), np.where(scattered, 0.0, reduce))
    regather = np.where(three, 0.0, np.where(hybrid, back, regather))
    window_b = full * (layer.dgrad + layer.wgrad + again)
    window_f = full * layer.forward
    hidden_reduce = np.where(x.overlap_grad > 0, np.minimum(reduce * c.grad_hidden, window_b), 0.0)
    hidden_gather = np.where(x.overlap_param > 0, np.minimum(regather * c.grad_hidden, window_f), 0.0)
    tail = reduce - hidden_reduce + regather - hidden_gather
    return a_layer, np.where(ranks > 1, tail, 0.0)
