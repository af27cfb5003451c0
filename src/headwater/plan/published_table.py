"""A table of published runs as it is read: columns, cells that say nothing, and sizes that are none.

In: a CSV with the columns of `data/published_runs.csv`, or fewer. Out: rows of text, for `headwater.plan.published`.

    rows = read_table("runs.csv"); clean(rows[0], assumed := [])
"""

from __future__ import annotations

import csv
import io
from importlib.resources import files
from pathlib import Path

import numpy as np

from headwater.core.errors import InputError

Row = dict[str, str]

BLANK = ("", "nan", "na", "n/a", "-", "?", "unknown")  # "none" is an answer: no recompute, no pipeline
NEEDED = {"gpu_type", "n_gpus", "tp", "pp", "dp", "hidden"}
"""Columns without which no row could be predicted."""


def number(text: str | None) -> float | None:
    try:
        value = float((text or "").replace(",", ""))
    except ValueError:
        return None
    return value if np.isfinite(value) else None


def read_table(path: Path | str | None = None) -> list[Row]:
    """Rows of a table of published runs; the packaged one without `path`. Columns of other names are left alone, and
    columns that a table lacks are empty. InputError for what is no such table."""
    if path is None:
        text = files("headwater.plan").joinpath("data/published_runs.csv").read_text()
        return list(csv.DictReader(io.StringIO(text)))
    if not Path(path).is_file():
        raise InputError("no such table", where=str(path), mend="give the path of a CSV of published runs")
    try:
        reader = csv.DictReader(io.StringIO(Path(path).read_text(encoding="utf-8-sig")))
        names = [name.strip().lower() for name in reader.fieldnames or ()]
        missing = sorted(NEEDED - set(names))
        if missing:
            raise InputError(
                f"not a table of published runs: missing {', '.join(missing)}",
                where=str(path),
                mend="the columns are those of src/headwater/plan/data/published_runs.csv",
            )
        known = files("headwater.plan").joinpath("data/published_runs.csv").read_text().splitlines()[0].split(",")
        reader.fieldnames = names
        rows = [{**dict.fromkeys(known, ""), **{k: v for k, v in row.items() if isinstance(k, str)}} for row in reader]
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"not a CSV in UTF-8: {error}", where=str(path), mend="export it again as CSV") from error
    if not rows:
        raise InputError("a table without rows", where=str(path), mend="give one row a run")
    return rows


LAYOUT = ("hidden", "seq", "n_gpus", "tp", "pp", "dp", "cp", "global_batch")
SIZES = ("layers", "heads", "kv_heads", "ffn", "vocab", "ep", "micro_batch", "moe_experts", "moe_topk", "moe_ffn",
         "params_b", "measured_tflops_per_gpu", "measured_mfu", "step_time_s", "tokens_per_s_per_gpu",
         "memory_gb")  # fmt: skip


def clean(row: Row, assumed: list[str]) -> str:
    """Leave out sizes that are none, and say so; why the row cannot be predicted if one of the layout's is."""
    for key in (*LAYOUT, *SIZES):
        value = number(row[key])
        blank = key in SIZES and value == 0
        if not row[key] or blank or (value is not None and 0 < value < 1e12):
            continue
        if key in LAYOUT:
            return f"{key} is {row[key]}, which no run has"
        assumed.append(f"{key}: {row[key]!r} is no size")
        row[key] = ""
    return ""
