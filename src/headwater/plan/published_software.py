"""What software a published row ran on, and over which network: the row's own words first, then what is known of its
source (`data/stacks.yaml`), then what is usual for such a part.

In: a row in the spelling of `headwater.plan.published_table`, and its accelerator. Out: a stack, bytes/s a GPU, and
the fields of `Cases` that the row's notes state. What is only usual is said in `assumed`.
"""

from __future__ import annotations

import re

from .compute import NEW_UNITS
from .hardware import Accelerator
from .published_table import Row
from .stacks import Stack, raw, stack

GPUS_PER_NODE = 8
# "4 x 100Gb RoCE a node", "1600 Gbps RoCE/node", "400Gb/s RDMA per GPU", "3.2 Tbps per node"; GB is bytes and no match.
RATE = re.compile(
    r"(?:(\d+)\s*[xX]\s*)?(\d+(?:\.\d+)?)\s*([GTgt])b(?:ps|(?<=[GT]b)(?:it)?(?:/s)?)(?![A-Za-z])"
    r"[^;,]{0,24}?(?:\b[Pp]er|\ba|/)\s*((?i:node|host|gpu))\b"
)
NODE = re.compile(r"(\d+)\s*gpus\s*(?:per|a|/)\s*(?:node|host)", re.IGNORECASE)


def short_name(part: Accelerator) -> str:
    return re.split(r"[-_]", part.name)[0]


def node_size(row: Row) -> float | None:
    """GPUs a node, where the row states it."""
    found = NODE.search(row["notes"])
    return float(found.group(1)) if found else None


def stated_network(row: Row) -> float | None:
    """Bytes/s a GPU, one direction, as the row's notes state it for a node or a GPU; None where they do not."""
    found = RATE.search(row["notes"])
    if found:
        many, rate, unit, per = found.groups()
        bits = float(many or 1) * float(rate) * (1e12 if unit in "Tt" else 1e9)
        return bits / 8.0 / (1.0 if per.lower() == "gpu" else node_size(row) or GPUS_PER_NODE)
    return None


def network(row: Row, part: Accelerator) -> float:
    """Bytes/s a GPU between nodes: stated by the row, by its source, or usual for the part."""
    table = raw()
    usual = float(table["gpu_network"].get(short_name(part), 25.0))
    known = table["sources"].get(row["family"], {})
    if "nic_gbs" in known and not ("oom" in row["family"] and "sc21" in row["source"].lower()):
        usual = float(known["nic_gbs"])
    return stated_network(row) or usual * 1e9


def _fsdp(row: Row) -> str:
    """PyTorch's FSDP compiles where the row says so; 8-bit linear layers need it."""
    notes = row["notes"].lower()
    compiled = "compile" in notes.replace("no compile", "") or "8" in row["precision"]
    return "fsdp-compiled" if compiled and "eager" not in notes else "fsdp-eager"


def _by_words(row: Row, part: Accelerator) -> str | None:
    """A stack that the row names, by its software; None when it names none that is known."""
    text = " ".join(row[key] for key in ("family", "source", "source_ref", "notes")).lower()
    recent = part.peak_flops(part.half) > NEW_UNITS
    for word, name in raw()["words"].items():
        if re.search(rf"\b{word}\b", text):
            if isinstance(name, dict):
                name = name["recent" if recent else "before"]
            return _fsdp(row) if name == "fsdp" else str(name)
    return None


def _usual(row: Row, part: Accelerator) -> str:
    """The stack that such a part and layout usually meant, where the row names none."""
    short = short_name(part)
    unfused = short == "v100" or (row["precision"] == "fp16" and row["recompute"] == "full")
    if short == "tpu":
        return "xla"
    if row["zero_stage"] == "3" and not unfused:
        return _fsdp(row)
    recent = part.peak_flops(part.half) > NEW_UNITS
    return "megatron-2021" if unfused else "megatron-core" if recent else "megatron-2023"


def software(row: Row, part: Accelerator, assumed: list[str]) -> Stack:
    """The software stack of a row; what is only usual is said in `assumed`."""
    known = raw()["sources"].get(row["family"])
    name = known["stack"] if known else _by_words(row, part)
    if name is None:
        name = _usual(row, part)
        assumed.append(f"software: {name}, the usual one")
    if "oom" in row["family"] and "sc21" in row["source"].lower():
        name = "megatron-2021"
    if row["schedule"] == "dp" and row["zero_stage"] == "3":
        name = "deepspeed-zero3"
    if "megascale)" in row["model"].lower():
        name = "megascale"
    if name == "fsdp-compiled" and "eager" in row["notes"].lower():
        name = "fsdp-eager"
    if name == "bigscience" and row["precision"] == "bf16":
        name = "bigscience-bf16"
    return stack(name)


def overrides(row: Row, name: str) -> dict[str, float]:
    """Fields of `Cases` that the row's own words state."""
    notes, model = row["notes"].lower(), row["model"].lower()
    out: dict[str, float] = {}
    if "sequence parallelism on" in notes:
        out["sequence_parallel"] = 1.0
    elif "no sequence parallelism" in notes:
        out["sequence_parallel"] = 0.0
    if "async tp" in notes or "asynctp" in notes:
        out["overlap_tp"] = 1.0
    if "vanilla tp" in notes or "2d fsdp+tp" in notes:
        out["overlap_tp"] = 0.0
    together = "parallel transformer block" in notes or "ptb" in notes or "parallel attention" in notes
    if together or "neox" in model or "palm" in model:
        out["parallel_block"] = 1.0
    if "sliding-window" in notes or "swa" in notes:
        out["window"], out["window_share"] = 1024.0, 1.0  # length not published: assumed
    if name.startswith("bigscience") and "numa fix" not in notes and row["family"] == "bloom-sweep":
        out["derate"] = 1.03  # the source: its later fix of PCIe affinity gave 1 to 5 %
    if "params not resharded" in notes:
        out["reshard"] = 0.0
    if node_size(row):
        out["domain"] = float(node_size(row) or 0)
    return out
