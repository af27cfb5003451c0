"""A table of published runs as it is read: columns, spellings, cells that say nothing, and sizes that are none.

In: a CSV with the columns of `data/published_runs.csv`, or fewer. Out: rows of text, for `headwater.plan.published`.

    rows = read_table("runs.csv"); row = spelled(rows[0], assumed := []); clean(row, assumed)
"""

from __future__ import annotations

import csv
import io
import re
from importlib.resources import files
from pathlib import Path

import numpy as np

from headwater.core.errors import InputError

Row = dict[str, str]

BLANK = ("", "nan", "na", "n/a", "-", "?", "unknown")  # "none" is an answer: no recompute, no pipeline
NEEDED = {"gpu_type", "n_gpus", "tp", "pp", "dp", "hidden"}
"""Columns without which no row could be predicted."""
DELIMITERS = (",", ";", "\t")


def number(text: str | None) -> float | None:
    """The number of a cell, with or without thousands' commas and a percent sign; None for none and for nan."""
    try:
        value = float((text or "").replace(",", "").strip().removesuffix("%"))
    except ValueError:
        return None
    return value if np.isfinite(value) else None


def _packaged(name: str) -> str:
    return files("headwater.plan").joinpath(f"data/{name}.csv").read_text(encoding="utf-8")


def read_table(path: Path | str | None = None) -> list[Row]:
    """Rows of a table of published runs; the packaged one without `path`. Columns of other names are left alone, and
    columns that a table lacks are empty, and so do lines without a cell. InputError for what is no such table."""
    if path is None:
        return list(csv.DictReader(io.StringIO(_packaged("published_runs"))))
    if not Path(path).is_file():
        raise InputError("no such table", where=str(path), mend="give the path of a CSV of published runs")
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
        head = text.split("\n", 1)[0]
        reader = csv.DictReader(io.StringIO(text), delimiter=max(DELIMITERS, key=head.count))
        names = [name.strip().lower() for name in reader.fieldnames or ()]
        missing = sorted(NEEDED - set(names))
        if missing:
            raise InputError(
                f"not a table of published runs: missing {', '.join(missing)}",
                where=str(path),
                mend="the columns are those of src/headwater/plan/data/published_runs.csv",
            )
        known = _packaged("published_runs").splitlines()[0].split(",")
        reader.fieldnames = names
        rows = [{**dict.fromkeys(known, ""), **{k: v for k, v in row.items() if isinstance(k, str)}} for row in reader]
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"not a CSV in UTF-8: {error}", where=str(path), mend="export it again as CSV") from error
    rows = [row for row in rows if any((value or "").strip() for value in row.values())]
    if not rows:
        raise InputError("a table without rows", where=str(path), mend="give one row a run")
    return rows


PRECISIONS = (
    ("mxfp8", r"mx-?fp8|fp8[-_ ]?mx"), ("nvfp4", r"(nv|mx)?-?fp4"), ("fp8", r"fp8|float8|e4m3"), ("int8", "int8"),
    ("bf16", "bf16|bfloat16"), ("fp16", "fp16|float16|half"), ("tf32", "tf32"), ("fp32", "fp32|float32|single"),
)  # fmt: skip
RECOMPUTES = (
    ("none", r"(none|no|off|false|0)\b"), ("selective", "selective|partial|every|core|attention|op"),
    ("full", r"full|whole|all|block|uniform|(yes|on|true|1)\b"),
)  # fmt: skip
SCHEDULES = (
    ("none", r"none|no\b|ddp"), ("dp", r"dp\b|zero-?\d"), ("fsdp+tp", r"fsdp2?[-+ ]*tp"), ("fsdp", "fsdp|hsdp"),
    ("1f1b-interleaved", ".*interleaved|vpp|virtual"), ("gpipe", "gpipe"), ("zb-h1", "zb[-_ ]?h1"),
    ("zb-1p", "zb[-_ ]?1p"), ("zb-h2", "zb[-_ ]?h2"), ("zb-2p", "zb[-_ ]?2p"), ("zb-v", "zb[-_ ]?v"),
    ("dualpipe", "dual"), ("1f1b", "1f1b|pipedream|one[-_ ]f"),
)  # fmt: skip
GATED = (("1", r"(1|true|yes|gated|swiglu|geglu)\b"), ("0", r"(0|false|no|none|gelu|relu)\b"))
STAGES = (
    ("0", r"(0|none|no|ddp|dp)\b"), ("3", r"(zero|stage)?[-_ ]*3|fsdp|hsdp"), ("2", r"(zero|stage)?[-_ ]*2"),
    ("1", r"(zero|stage)?[-_ ]*1|dist"), ("0", r"(zero|stage)[-_ ]*0"),
)  # fmt: skip
SPELLINGS = {
    "precision": PRECISIONS, "recompute": RECOMPUTES, "schedule": SCHEDULES, "gated_mlp": GATED, "zero_stage": STAGES,
}  # fmt: skip


def _canonical(text: str, column: str) -> str | None:
    """The answer that a cell of a column of few answers spells; of several the first; None for none of them."""
    found = []
    for order, (answer, pattern) in enumerate(SPELLINGS[column]):
        match = re.search(pattern, text) if column == "precision" else re.match(pattern, text)
        if match:
            found.append((match.start(), order, answer))
    return min(found)[2] if found else None


def spelled(row: Row, assumed: list[str]) -> Row:
    """The row in one spelling: blanks empty, columns of few answers in the words of the packaged table. What is none
    of a column's answers is left out and said in `assumed`."""
    out = {key: (value or "").strip() for key, value in row.items()}
    out = {key: "" if value.lower() in BLANK else value for key, value in out.items()}
    out["family"] = re.sub(r"[\s_]+", "-", out["family"].lower())
    out["grade"] = out["grade"].upper()
    out["tflops_kind"] = out["tflops_kind"].lower()
    for column in SPELLINGS:
        text = out[column].lower()
        if column in ("zero_stage", "gated_mlp") and number(text) is not None:
            text = f"{number(text):g}"
        answer = _canonical(text, column) if text else ""
        if answer is None:
            assumed.append(f"{column}: {out[column]!r} is none that is known")
        out[column] = answer or ""
    return out


LAYOUT = ("hidden", "seq", "n_gpus", "tp", "pp", "dp", "cp", "global_batch")
SIZES = ("layers", "heads", "kv_heads", "ffn", "vocab", "ep", "micro_batch", "moe_experts", "moe_topk", "moe_ffn",
         "params_b", "measured_tflops_per_gpu", "measured_mfu", "step_time_s", "tokens_per_s_per_gpu",
         "memory_gb")  # fmt: skip


def clean(row: Row, assumed: list[str]) -> str:
    """Leave out sizes that are none, and say so; why the row cannot be predicted if one of the layout's is."""
    for key in (*LAYOUT, *SIZES):
        value = number(row[key])
        if key in SIZES and value == 0:
            row[key] = ""  # how some tables write that there is none
        if not row[key] or (value is not None and 0 < value < 1e12):
            continue
        if key in LAYOUT:
            return f"{key} is {row[key]}, which no run has"
        assumed.append(f"{key}: {row[key]!r} is no size")
        row[key] = ""
    return ""
