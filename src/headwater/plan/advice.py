"""Warnings on a plan: each with the number that is off and what mends it.

In: a `Plan`. Out: a list of `{"name", "what", "mend", "value"}`, most serious first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .candidates import SPLIT_BACKWARD
from .memory import FITS_SHARE
from .scaling import REPEATS_USEFUL

if TYPE_CHECKING:
    from .plan import Plan

TIGHT_SHARE = 0.88
BUBBLE_SHARE = 0.10
EXPOSED_SHARE = 0.15
HOST_SHARE = 0.10
LARGEST_BATCH_TOKENS = 2**24  # Llama 3 405B's 2,048 x 8,192, the largest published; assumed near the critical batch
LARGE_VOCAB = 128_000
CALIBRATED_GPUS = 12_288  # the largest published run the constants were fitted on


def warnings(plan: Plan) -> list[dict[str, Any]]:
    """All that should be looked at before the money is spent."""
    out: list[dict[str, Any]] = []

    def warn(name: str, value: float, what: str, mend: str) -> None:
        out.append({"name": name, "value": value, "what": what, "mend": mend})

    _memory(plan, warn)
    _pipeline(plan, warn)
    _traffic(plan, warn)
    _shapes(plan, warn)
    _data(plan, warn)
    _run(plan, warn)
    return out


def _memory(plan: Plan, warn: Any) -> None:
    held = plan.data["memory"]
    share = held["share_of_device"]
    gib = held["device_bytes"] / 2**30
    if share > FITS_SHARE:
        warn("memory", share, f"needs {gib:.1f} GiB, {share:.0%} of the GPU: it will not fit", _smaller(plan))
    elif share > TIGHT_SHARE:
        warn("memory", share, f"takes {gib:.1f} GiB, {share:.0%} of the GPU: fragmentation may end it", _smaller(plan))
    logits = held["components"]["logits"]
    if plan.model.vocab >= LARGE_VOCAB and logits > 0.1 * held["allocated_bytes"]:
        warn(
            "logits", logits, f"logits of {plan.model.vocab:,} tokens take {logits / 2**30:.1f} GiB on the last stage",
            "chunk the loss, shard the vocabulary with tp, or use a smaller micro-batch",
        )  # fmt: skip


def _smaller(plan: Plan) -> str:
    ways = []
    if plan.layout.micro_batch > 1:
        ways.append(f"micro-batch {plan.layout.micro_batch // 2 or 1}")
    if plan.layout.recompute < 1:
        ways.append("more recompute")
    if plan.layout.zero < 1 and plan.layout.dp > 1:
        ways.append("ZeRO 1")
    ways.append("more tp or pp")
    return "; ".join(ways)


def _pipeline(plan: Plan, warn: Any) -> None:
    layout, step = plan.layout, plan.data["step"]
    m = step["micro_batches"]
    if layout.pp > 1 and step["bubble_share"] > BUBBLE_SHARE:
        per_stage = plan.model.layers // layout.pp
        mends = [f"global batch {plan.train.global_batch * 2:,} or more"]
        if layout.schedule == "1f1b" and per_stage > 1:
            mends.insert(0, f"interleaved_1f1b with up to {per_stage} chunks, or zbv")
        if layout.micro_batch > 1:
            mends.append(f"micro-batch {layout.micro_batch // 2}")
        warn(
            "bubble", step["bubble_share"],
            f"the pipeline idles {step['bubble_share']:.0%} of the step: {m} micro-batches over {layout.pp} stages",
            "; ".join(mends),
        )  # fmt: skip
    recomputed = layout.recompute > 0 or layout.recompute_light
    if layout.pp > 1 and recomputed and layout.schedule in SPLIT_BACKWARD and plan.train.stack.startswith("headwater"):
        warn(
            "recompute_split", max(layout.recompute, float(layout.recompute_light)),
            f"{layout.schedule} computes again for input and for weight gradients: twice, and little memory is saved",
            "recompute none, or interleaved_1f1b",
        )  # fmt: skip
    if layout.pp > 1 and m < layout.pp:
        warn("micro_batches", m, f"{m} micro-batches cannot fill {layout.pp} stages", "a larger batch or fewer stages")
    if layout.pp > 1 and layout.schedule == "interleaved_1f1b" and m % layout.pp:
        warn(
            "interleaving", m, f"{m} micro-batches are no multiple of {layout.pp} stages",
            "interleaving needs a multiple: change the batch",
        )  # fmt: skip
    if layout.pp > 1 and plan.model.layers % layout.pp:
        warn(
            "stages", plan.model.layers / layout.pp,
            f"{plan.model.layers} layers over {layout.pp} stages are uneven", "a divisor of the layers",
        )  # fmt: skip


def _traffic(plan: Plan, warn: Any) -> None:
    layout, step = plan.layout, plan.data["step"]
    if layout.tp > plan.cluster.domain:
        warn(
            "tp_across_nodes", layout.tp,
            f"tensor parallelism of {layout.tp} leaves the fast domain of {plan.cluster.domain} GPUs",
            f"tp {plan.cluster.domain} and more pp",
        )  # fmt: skip
    if step["exposed_traffic_share"] > EXPOSED_SHARE:
        worst = max(("tp", "cp", "ep", "pp", "dp"), key=lambda name: step["components"][name])
        mend = {
            "tp": "less tp, or overlapped collectives",
            "cp": "less cp",
            "ep": "experts inside the fast domain",
            "pp": "fewer chunks or stages, a faster network",
            "dp": "a larger batch a rank, ZeRO over fewer ranks, a faster network",
        }[worst]
        warn(
            "exposed_traffic", step["exposed_traffic_share"],
            f"{step['exposed_traffic_share']:.0%} of the step waits for traffic, most of it {worst}", mend,
        )  # fmt: skip
    tokens = layout.micro_batch * plan.train.seq / layout.cp
    if layout.zero == 3 and step["shares"]["dp"] > 0.1:
        warn(
            "zero3_small", tokens, f"{tokens:,.0f} tokens a GPU are too few to hide ZeRO-3's gathers",
            "a larger micro-batch, hybrid sharding, or ZeRO 1 with tp and pp",
        )  # fmt: skip
    if step["shares"]["host"] > HOST_SHARE:
        warn(
            "host", step["shares"]["host"], f"the GPU waits {step['shares']['host']:.0%} of the step for its host",
            "a larger micro-batch, torch.compile or CUDA graphs",
        )  # fmt: skip


def _shapes(plan: Plan, warn: Any) -> None:
    model, layout = plan.model, plan.layout
    if model.head_dim % 8:
        warn(
            "head_dim", model.head_dim, f"a head dimension of {model.head_dim} is no multiple of 8",
            "change heads: off the fast path attention and projections lose up to half their rate",
        )  # fmt: skip
    elif model.head_dim % 64:
        warn("head_dim", model.head_dim, f"a head dimension of {model.head_dim} is no multiple of 64", "64 or 128")
    if model.ffn and (model.ffn / layout.tp) % 128:
        warn(
            "ffn", model.ffn, f"feed-forward width {model.ffn:,} / tp {layout.tp} is no multiple of 128",
            f"{-(-model.ffn // (128 * layout.tp)) * 128 * layout.tp:,}",
        )  # fmt: skip
    if model.vocab % (128 * layout.tp):
        padded = -(-model.vocab // (128 * layout.tp)) * 128 * layout.tp
        warn("vocab", model.vocab, f"vocabulary {model.vocab:,} is no multiple of 128 x tp", f"pad it to {padded:,}")
    if model.kv_heads < layout.tp:
        warn(
            "kv_heads", model.kv_heads, f"{model.kv_heads} key-value heads are fewer than tp {layout.tp}",
            f"tp {model.kv_heads}, or copies of the heads on several ranks",
        )  # fmt: skip


def _data(plan: Plan, warn: Any) -> None:
    scaling, train = plan.data["scaling"], plan.train
    ratio = scaling["tokens_per_parameter"]
    low, high = scaling["optimal_tokens_per_parameter_low"], scaling["optimal_tokens_per_parameter_high"]
    if ratio < low / 2:
        warn(
            "tokens_per_parameter", ratio, f"{ratio:.1f} tokens a parameter; {low:.0f} to {high:.0f} are optimal",
            f"{scaling['optimal_parameters']:.3g} parameters on {scaling['optimal_tokens']:.3g} tokens",
        )  # fmt: skip
    elif ratio > 10 * high:
        warn(
            "tokens_per_parameter", ratio, f"{ratio:.0f} tokens a parameter, far beyond the optimum of {high:.0f}",
            "worth it only for a model that serves much: see inference-aware scaling",
        )  # fmt: skip
    if scaling["epochs"] > REPEATS_USEFUL:
        warn(
            "epochs", scaling["epochs"], f"the data is repeated {scaling['epochs']:.1f} times",
            f"beyond {REPEATS_USEFUL:g} epochs repeats teach little: more data or fewer tokens",
        )  # fmt: skip
    batch = train.global_batch * train.seq
    if batch > LARGEST_BATCH_TOKENS:
        warn(
            "batch", batch, f"{batch / 1e6:.1f}M tokens a step is beyond published batches",
            "fewer samples a step, or measure the critical batch first",
        )  # fmt: skip


def _run(plan: Plan, warn: Any) -> None:
    storage, failures = plan.data["storage"], plan.data["failures"]
    if storage["save_share_of_interval"] > 0.9:
        warn(
            "storage", storage["save_share_of_interval"],
            f"a checkpoint of {storage['checkpoint_bytes'] / 1e12:.2f} TB takes "
            f"{storage['checkpoint_save_seconds']:.0f} s to write, longer than the best interval",
            "faster storage, or checkpoints to local disks and fewer to the filesystem",
        )  # fmt: skip
    if storage["read_share"] > 0.5:
        warn("reading", storage["read_share"], "reading the data takes most of the storage", "shards on local disks")
    if failures["goodput"] < 0.85:
        warn(
            "goodput", failures["goodput"], f"{1 - failures['goodput']:.0%} of the time is lost to failures",
            "faster detection and restart, spare nodes, cheaper checkpoints",
        )  # fmt: skip
    if plan.layout.gpus > CALIBRATED_GPUS:
        warn(
            "extrapolation", plan.layout.gpus, f"{plan.layout.gpus:,} GPUs are beyond the published runs the constants "
            f"come from ({CALIBRATED_GPUS:,})", "treat the interval as too narrow",
        )  # fmt: skip
    if plan.cluster.nic_assumed:
        gbps = plan.cluster.nic_per_gpu * plan.cluster.gpus_per_node * 8 / 1e9
        warn(
            "network_assumed", gbps, f"the network was not given; {gbps:.0f} Gb/s a node is assumed",
            "name it in a cluster file: nic_per_node: 400Gbps",
        )  # fmt: skip
    if not plan.data["runnable"]["runnable"]:
        warn("runnable", 0, plan.data["runnable"]["reason"], "plan it here, train it with the exported flags")
