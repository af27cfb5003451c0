"""Published training runs as cases for the cost model: one row of the table in, its possible layouts out.

A row that does not say its micro-batch, interleaving or recompute gives several variants; the evaluation takes the
fastest that fits, as the authors did, and says so. Nothing of the measured result is read here but the result itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from headwater.core.errors import InputError

from . import counts
from .cases import Schedule
from .cases import stack as stack_cases
from .hardware import accelerator
from .precision import arithmetic
from .published_software import network, overrides, software
from .published_table import Row, clean, number, spelled

SCHEDULES = {
    "": Schedule.NONE,
    "none": Schedule.NONE,
    "dp": Schedule.NONE,
    "fsdp": Schedule.NONE,
    "fsdp+tp": Schedule.NONE,
    "1f1b": Schedule.ONE_F_ONE_B,
    "gpipe": Schedule.GPIPE,
    "1f1b-interleaved": Schedule.INTERLEAVED,
    "zb-h1": Schedule.ZB_H1,
    "zb-1p": Schedule.ZB_1P,
    "zb-h2": Schedule.ZB_H2,
    "zb-2p": Schedule.ZB_2P,
    "zb-v": Schedule.ZB_V,
    "dualpipe": Schedule.DUALPIPE,
}
MICRO_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16)
# Selective checkpointing of FSDP that keeps half: every second layer, or of each layer's products every second.
HALF_AGAIN = ("every second", "every other", "every 2nd", "per-op")
NEAR_PARAMETERS = 0.02  # published counts are rounded
DEFAULT_VOCAB = 51200.0  # GPT-2's 50257 padded for tensor parallelism, what Megatron papers use


@dataclass
class Published:
    """One row ready to predict: its variants and what was measured."""

    row: Row
    variants: list[dict[str, float]]
    assumed: list[str] = field(default_factory=list)
    skipped: str = ""

    @property
    def family(self) -> str:
        return self.row["family"]

    @property
    def moe(self) -> bool:
        return bool(number(self.row["moe_experts"]))

    @property
    def graded(self) -> bool:
        """Measured with a layout; a table without grades is taken at its word."""
        return self.row["grade"] in ("A", "B", "")

    @property
    def out_of_memory(self) -> bool:
        return "outcome=oom" in self.row["notes"].lower()

    @property
    def usual_software(self) -> bool:
        """Nothing is known of its software but what is usual."""
        return any(note.startswith("software:") for note in self.assumed)


def _model(row: Row, siblings: Sequence[Row], assumed: list[str]) -> dict[str, float] | str:
    """Model fields of `Cases`, or why the row has none."""
    hidden = number(row["hidden"])
    if hidden is None:
        return "no model dimensions published"
    ffn = number(row["ffn"])
    experts = number(row["moe_experts"]) or 0.0
    vocab = number(row["vocab"])
    if vocab is None:
        vocab = DEFAULT_VOCAB
        assumed.append(f"vocab={vocab:.0f}")
    if ffn is None and not experts:
        ffn = 4.0 * hidden
        assumed.append("ffn=4*hidden")
    layers = number(row["layers"])
    if layers is None:
        params = number(row["params_b"])
        if params is None:
            return "neither layers nor parameters published"
        layers = float(round((params * 1e9 - vocab * hidden) / (12.0 * hidden**2)))
        if layers < 1:
            return f"{params:g} billion parameters are too few for layers of {hidden:.0f}"
        assumed.append(f"layers={layers:.0f} from parameters")
    heads = number(row["heads"])
    if heads is None:
        same = [number(r["heads"]) for r in siblings if r["family"] == row["family"] and number(r["hidden"]) == hidden]
        known = [h for h in same if h]
        # The usual count of the source's other models of this width, else one that makes heads of 128.
        heads = sorted(known)[len(known) // 2] if known else max(number(row["tp"]) or 1.0, float(round(hidden / 128)))
        assumed.append(f"heads={heads:.0f}")
    mla = "deepseek" in row["model"].lower() and heads == 128 and experts > 0
    head_dim = hidden / heads
    if "qwen3" in row["model"].lower():
        head_dim = 128.0
    oss = "gpt oss" in row["model"].lower() or "gpt-oss" in row["model"].lower()
    if oss:
        head_dim = 64.0
    kv_heads = number(row["kv_heads"]) or heads
    layer = 2.0 * hidden * head_dim * (heads + kv_heads)
    gated, tied = _gate_and_table(row, layers * layer, layers * hidden * (ffn or 0.0), vocab * hidden, assumed)
    dense = re.search(r"dense_layers=(\d+)", row["notes"].lower())
    dense_layers = float(dense.group(1)) if dense else 3.0 if mla and layers > 10 else 0.0
    expert_ffn = number(row["moe_ffn"]) or 0.0
    v2 = "v2" in row["model"].lower()
    return {
        "layers": layers,
        "hidden": hidden,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": 192.0 if mla else head_dim,
        "ffn": ffn or 0.0,
        "vocab": vocab,
        "gated": gated,
        "tied": tied,
        "experts": experts,
        "topk": number(row["moe_topk"]) or 0.0,
        "expert_ffn": expert_ffn,
        "shared_ffn": (2.0 if v2 else 1.0) * expert_ffn if mla else 0.0,
        "dense_layers": dense_layers,
        "mla": float(mla),
        "q_lora": 1536.0 if mla else 0.0,
        "kv_lora": 512.0 if mla else 0.0,
        "rope_dim": 64.0 if mla else 0.0,
        "value_dim": 128.0 if mla else head_dim,
        "parallel_block": 0.0,
        "window": 128.0 if oss else 0.0,  # GPT-OSS: every other layer sees 128 tokens
        "window_share": 0.5 if oss else 0.0,
    }


def _gate_and_table(row: Row, attention: float, ffn: float, table: float, assumed: list[str]) -> tuple[float, float]:
    """Whether the feed-forward is gated and the two embeddings are one, 0 or 1: as published, else what comes nearest
    to the published parameters, else the habit (gated since Llama, one table before)."""
    stated = number(row["gated_mlp"])
    total = (number(row["params_b"]) or 0.0) * 1e9
    small = "tie embeddings" in row["notes"].lower() and 0 < total < 4e9
    if number(row["moe_experts"]):
        return stated or 0.0, float(not stated or small)
    gates = (0.0, 1.0) if stated is None and total else (stated or 0.0,)
    error = {
        (gate, tied): abs((attention + (2.0 + gate) * ffn + (2.0 - tied) * table) / total - 1.0)
        for gate in gates
        for tied in (0.0, 1.0)
        if total
    }
    gated, tied = min(error, key=lambda pair: error[pair]) if error else (gates[0], float(not gates[0]))
    if not error or error[(gated, tied)] > NEAR_PARAMETERS:
        tied = float(not gated or small)
    if stated is None:
        assumed.append(f"gated_mlp={gated:.0f}" + (" from parameters" if error else ""))
    return gated, tied


def _chunks(row: Row, layers: float, pp: float, schedule: Schedule) -> list[float]:
    if schedule != Schedule.INTERLEAVED or pp <= 1:
        return [1.0]
    text = row["vpp"].strip()
    if text.startswith("max"):
        return [max(1.0, np.ceil((layers + 2) / pp) if (layers + 2) % pp == 0 else np.ceil(layers / pp))]
    value = number(text)
    if value is not None:
        return [value]
    per_stage = round((layers + 2) / pp if (layers + 2) % pp == 0 else layers / pp)
    return [float(v) for v in range(1, per_stage + 1) if per_stage % v == 0 and v <= 8] or [1.0]


def prepare(row: Row, siblings: Sequence[Row]) -> Published:
    """Turn one row into its variants; `skipped` says why a row cannot be predicted."""
    assumed: list[str] = []
    row = spelled(row, assumed)
    out = Published(row, [], assumed)
    out.skipped = clean(row, assumed)
    if out.skipped:
        return out
    try:
        return _prepare(row, siblings, out)
    except InputError as error:
        return Published(row, [], skipped=error.what)


def _prepare(row: Row, siblings: Sequence[Row], out: Published) -> Published:
    part = accelerator(row["gpu_type"])
    model = _model(row, siblings, out.assumed)
    if isinstance(model, str):
        out.skipped = model
        return out
    layout = {key: number(row[key]) for key in ("tp", "pp", "dp", "n_gpus", "seq", "global_batch")}
    missing = [key for key, value in layout.items() if value is None]
    if missing:
        out.skipped = f"no {', '.join(missing)} published"
        return out
    tp, pp, dp, gpus, seq, batch = (float(layout[k] or 0) for k in ("tp", "pp", "dp", "n_gpus", "seq", "global_batch"))
    cp = number(row["cp"]) or 1.0
    if abs(tp * pp * dp * cp - gpus) > 0.5:
        fixed = gpus / (tp * pp * cp)
        out.assumed.append(f"dp={fixed:.0f} from GPUs (source says {dp:.0f})")
        dp = max(fixed, 1.0)
    stack = software(row, part, out.assumed)
    schedule = SCHEDULES[row["schedule"]]
    if pp > 1 and schedule == Schedule.NONE:
        schedule = Schedule.ONE_F_ONE_B
    zero_text = number(row["zero_stage"])
    zero = 3.0 if zero_text is None and row["schedule"] == "fsdp" else zero_text or 0.0
    if zero >= 3 and pp > 1:
        # FSDP under a pipeline keeps parameters and gradients whole between micro-batches: ZeRO-1 traffic and memory.
        zero = 1.0
    base: dict[str, float] = {
        **model,
        **arithmetic(part, row["precision"] or part.half),
        **stack.fields(),  # after arithmetic: a stack may keep more optimizer state
        "seq": seq,
        "global_batch": batch,
        "tp": tp,
        "pp": pp,
        "dp": dp,
        "cp": cp,
        "ep": number(row["ep"]) or 1.0,
        "zero": zero,
        "shard_group": dp * cp,
        "schedule": float(schedule),
        "nic_bandwidth": network(row, part),
        "derate": 1.0,
        "recompute_light": 0.0,
        **overrides(row, stack.name),
    }
    shard = re.search(r"sharding group=(\d+)", row["notes"], re.I)
    if shard:
        base["shard_group"] = float(shard.group(1))
    elif "7b = hsdp" in row["notes"].lower() and "7b" in row["model"].lower():
        base["shard_group"] = min(8.0, dp)
    out.variants = list(_variants(row, base, out.assumed))
    return out


def _variants(row: Row, base: dict[str, float], assumed: list[str]) -> Iterable[dict[str, float]]:
    one_rank = base["tp"] * base["pp"] == 1 and base["zero"] < 3 and base["dp"] > 1
    if one_rank and 6.0 * (number(row["params_b"]) or 0.0) * 1e9 > base["memory_bytes"]:
        base = {**base, "zero": 3.0}
        assumed.append("zero=3: the stated stage cannot hold the model")
    for b, v in _cuts(row, base, assumed):
        for share, core in _recomputes(row, base, assumed):
            yield {**base, "micro_batch": b, "chunks": v, "recompute": share, "recompute_core": core}


def _cuts(row: Row, base: dict[str, float], assumed: list[str]) -> list[tuple[float, float]]:
    """Micro-batch and chunks a stage: as published, or all that divide."""
    per_rank = base["global_batch"] / base["dp"]
    micro = number(row["micro_batch"])
    chunks = _chunks(row, base["layers"], base["pp"], Schedule(int(base["schedule"])))
    if len(chunks) > 1:
        assumed.append("interleaving searched")
    if micro is not None and row["family"] == "torchtitan" and base["pp"] > 1:
        # The published number is the local batch; torchtitan of that time cut it into one micro-batch a stage, and
        # gave a rank two stages when interleaving.
        deep = [2.0] if len(chunks) > 1 else [1.0]
        cuts = [(micro / (base["pp"] * v), v) for v in deep if micro % (base["pp"] * v) == 0]
        assumed.append("micro_batch: local batch / stages, the framework's default")
        return cuts or [(max(1.0, micro / base["pp"]), 1.0)]
    if micro is not None:
        return [(micro, v) for v in chunks]
    assumed.append("micro_batch searched")
    options = [float(b) for b in MICRO_BATCHES if per_rank % b == 0 and b <= per_rank] or [min(1.0, per_rank)]
    return [(b, v) for b in options for v in chunks]


def _recomputes(row: Row, base: dict[str, float], assumed: list[str]) -> list[tuple[float, float]]:
    """Share of layers computed again, and whether the attention core is: as published, or the least that fits."""
    kind = row["recompute"]
    if kind == "full":
        return [(1.0, 1.0)]
    if kind == "none":
        return [(0.0, 0.0)]
    if kind == "selective":
        fsdp = base["zero"] >= 3 and base["attention"] > 0
        half = any(word in row["notes"].lower() for word in HALF_AGAIN)
        return [(0.5, 1.0), *([] if half else [(0.75, 1.0), (1.0, 1.0)])] if fsdp else [(0.0, 1.0)]
    if "recompute searched" not in assumed:
        assumed.append("recompute searched")
    return [(0.0, 1.0), (0.125, 1.0), (0.25, 1.0), (0.5, 1.0), (1.0, 1.0)]


def measured_throughput(row: Row, variant: dict[str, float]) -> float | None:
    """Tokens a second and GPU as measured: given, or from step time, TFLOPS or MFU by the source's convention."""
    given = number(row["tokens_per_s_per_gpu"])
    if given:
        return given
    seconds = number(row["step_time_s"])
    gpus = variant["tp"] * variant["pp"] * variant["dp"] * variant["cp"]
    if seconds:
        return variant["global_batch"] * variant["seq"] / seconds / gpus
    x = stack_cases([variant])
    causal = (
        0.5
        if "causal" in row["notes"].lower()
        and "non-causal" not in row["notes"].lower().replace("non-causal-formula", "")
        else 1.0
    )
    tflops, kind = number(row["measured_tflops_per_gpu"]), row["tflops_kind"]
    if tflops and "under-reports ~3%" in row["notes"].lower():
        tflops *= 1.03
    if tflops:
        if kind.startswith("hardware"):
            x.recompute = np.ones(1)
            return float(tflops * 1e12 / counts.hardware_flops_per_token(x, 1.0)[0])
        return float(tflops * 1e12 / counts.model_flops_per_token(x, causal)[0])
    mfu = number(row["measured_mfu"])
    if mfu:
        ratio = mfu / 100.0 if mfu > 1.0 else mfu
        return float(ratio * variant["peak_half"] / counts.model_flops_per_token(x, causal)[0])
    return None


def measured_memory(row: Row) -> tuple[float, str] | None:
    """Bytes measured and which gauge: allocated, reserved or device."""
    value = number(row["memory_gb"])
    if not value:
        return None
    notes, family = row["notes"].lower(), row["family"]
    kind = "device"
    if "reserved" in notes or family == "nanotron":
        kind = "reserved"
    elif "alloc" in notes or family == "zero-bubble":
        kind = "allocated"
    binary = "gib" in notes or family in ("nanotron", "bloom-sweep", "bloom-final")
    return value * (2.0**30 if binary else 1e9), kind
