"""Score the planner on a table of published runs, in figures that anyone can reproduce.

    python -m headwater.plan.evaluate published_runs.csv --json --rows out.csv

In: a CSV with the columns of `data/published_runs.csv`. Out: errors of tokens/s (dense rows of grade A and B), of
memory by gauge, false "fits" on rows marked OOM, coverage of the 80 % interval, rank correlation inside sweeps.
`--rows` writes one line a row with prediction and interval, and for a row left out the reason.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headwater.core.errors import HeadwaterError

from .coefficients import load
from .intervals import half_width
from .published import measured_memory
from .published_table import read_table
from .rows import Predictions, Table, build, predict

SC21 = ("megatron-sc21-t1", "megatron-sc21-t2")
KORTHIKANTI_ZB = ("korthikanti-t5", "zero-bubble")
# Sweeps: rows of these families that share a key are one sweep; a rank correlation needs four of them.
SWEEPS = {
    "bloom-sweep": ("hidden", "layers"),
    "bloom-final": ("hidden", "layers"),
    "vtrain-single": ("hidden", "layers", "n_gpus"),
    "vtrain-multi": ("hidden", "layers", "n_gpus"),
    "megatron-sc21-t2": (),
    "zero-bubble": ("hidden", "layers"),
}


def median(values: Any) -> float | None:
    array = np.asarray(values, dtype=float)
    array = array[np.isfinite(array)]
    return float(np.median(array)) if array.size else None


def spearman(a: Any, b: Any) -> float:
    """Rank correlation; ties take the mean rank."""

    def ranks(values: Any) -> Any:
        array = np.asarray(values, dtype=float)
        _, inverse, count = np.unique(array, return_inverse=True, return_counts=True)
        last = np.cumsum(count)
        return (last - (count - 1) / 2.0)[inverse]

    x, y = ranks(a), ranks(b)
    x, y = x - x.mean(), y - y.mean()
    scale = float(np.sqrt((x * x).sum() * (y * y).sum()))
    return float((x * y).sum() / scale) if scale > 0 else 0.0


def sweep_correlations(table: Table, predictions: Predictions) -> dict[str, float]:
    """Spearman of predicted against measured throughput inside each sweep of four rows and more."""
    groups: dict[str, list[int]] = {}
    for index, row in enumerate(table.rows):
        keys = SWEEPS.get(row.family)
        if keys is not None and table.scored[index]:
            groups.setdefault("/".join([row.family, *(row.row[key] for key in keys)]), []).append(index)
    out = {}
    for name, members in groups.items():
        measured = table.measured[members]
        if len(members) >= 4 and np.unique(measured).size > 1:
            out[name] = spearman(predictions.throughput[members], measured)
    return out


def evaluate(table: Table, predictions: Predictions) -> dict[str, Any]:
    """The figures, keyed as the command prints them."""
    error = np.abs(predictions.throughput / table.measured - 1.0)
    width = half_width(predictions.features, predictions.source)
    inside = np.abs(np.log(predictions.throughput / table.measured)) <= width
    scored, families = table.scored, table.families
    by_family = {}
    for family in sorted(set(families[scored])):
        here = scored & (families == family)
        signed = predictions.throughput[here] / table.measured[here] - 1.0
        by_family[family] = {
            "rows": int(here.sum()),
            "median_abs_error": float(np.median(error[here])),
            "bias": float(np.median(signed)),
            "p90_abs_error": float(np.quantile(error[here], 0.9)),
            "max_abs_error": float(error[here].max()),
            "coverage": float(inside[here].mean()),
        }
    memory: dict[str, list[float]] = {"allocated": [], "device": []}
    false_fits, false_oom, oom_rows = 0, 0, 0
    for index, row in enumerate(table.rows):
        pick = predictions.pick[index]
        if row.out_of_memory:
            oom_rows += 1
            false_fits += int(table.fits[pick])
        elif np.isfinite(table.measured[index]):
            false_oom += int(not table.fits[pick])
        gauge = measured_memory(row.row)
        if gauge is not None and row.graded:
            value = float(np.asarray(getattr(table.memory, gauge[1]))[pick])
            kind = "allocated" if gauge[1] == "allocated" else "device"
            memory[kind].append(abs(value / gauge[0] - 1.0))
    moe = table.moe & np.isfinite(table.measured)
    correlations = sweep_correlations(table, predictions)

    def some(names: Sequence[str]) -> float | None:
        return median(error[scored & np.isin(families, names)])

    return {
        "rows_total": len(table.rows) + len(table.skipped),
        "rows_scored": int(scored.sum()),
        "pooled_median_abs_error": median(error[scored]),
        "mean_of_family_medians": float(np.mean([f["median_abs_error"] for f in by_family.values()]))
        if by_family
        else None,
        "p90_abs_error": float(np.quantile(error[scored], 0.9)) if scored.any() else None,
        "memory_allocated_median_abs_error": median(memory["allocated"]),
        "memory_allocated_rows": len(memory["allocated"]),
        "memory_device_median_abs_error": median(memory["device"]),
        "memory_device_rows": len(memory["device"]),
        "false_fits": false_fits,
        "oom_rows": oom_rows,
        "false_oom": false_oom,
        "interval_coverage": float(inside[scored].mean()) if scored.any() else None,
        "interval_median_half_width": median(width[scored]),
        "korthikanti_zb_median_abs_error": some(KORTHIKANTI_ZB),
        "sc21_median_abs_error": some(SC21),
        "moe_median_abs_error": median(error[moe]),
        "moe_rows": int(moe.sum()),
        "spearman_median": median(list(correlations.values())),
        "spearman_sweeps": correlations,
        "families": by_family,
    }


COLUMNS = (
    "row_id", "family", "model", "grade", "moe", "scored", "measured_tokens_per_s_per_gpu",
    "predicted_tokens_per_s_per_gpu", "low_tokens_per_s_per_gpu", "high_tokens_per_s_per_gpu", "error",
    "measured_step_s", "predicted_step_s", "memory_gauge", "measured_memory_bytes", "predicted_memory_bytes",
    "predicted_allocated_bytes", "predicted_reserved_bytes", "predicted_device_bytes", "fits", "micro_batch", "vpp",
    "recompute", "zero_stage", "assumed", "skipped",
)  # fmt: skip


def row_lines(table: Table, predictions: Predictions) -> list[dict[str, Any]]:
    """One dictionary a row of the table, skipped ones with their reason."""
    width = half_width(predictions.features, predictions.source)
    lines: list[dict[str, Any]] = []
    for index, row in enumerate(table.rows):
        pick = predictions.pick[index]
        variant = row.variants[pick - table.start[index]]
        throughput, measured = float(predictions.throughput[index]), float(table.measured[index])
        known = bool(np.isfinite(measured))
        tokens = variant["global_batch"] * variant["seq"]
        gpus = variant["tp"] * variant["pp"] * variant["dp"] * variant["cp"]
        gauge = measured_memory(row.row)
        held = {name: float(np.asarray(getattr(table.memory, name))[pick]) for name in _GAUGES}
        lines.append(
            {
                "row_id": row.row["row_id"],
                "family": row.family,
                "model": row.row["model"],
                "grade": row.row["grade"],
                "moe": int(row.moe),
                "scored": int(table.scored[index]),
                "measured_tokens_per_s_per_gpu": measured if known else "",
                "predicted_tokens_per_s_per_gpu": throughput,
                "low_tokens_per_s_per_gpu": throughput * float(np.exp(-width[index])),
                "high_tokens_per_s_per_gpu": throughput * float(np.exp(width[index])),
                "error": throughput / measured - 1.0 if known else "",
                "measured_step_s": tokens / measured / gpus if known else "",
                "predicted_step_s": tokens / throughput / gpus,
                "memory_gauge": gauge[1] if gauge else "",
                "measured_memory_bytes": gauge[0] if gauge else "",
                "predicted_memory_bytes": held[gauge[1]] if gauge else "",
                "predicted_allocated_bytes": held["allocated"],
                "predicted_reserved_bytes": held["reserved"],
                "predicted_device_bytes": held["device"],
                "fits": int(table.fits[pick]),
                "micro_batch": variant["micro_batch"],
                "vpp": variant["chunks"],
                "recompute": variant["recompute"],
                "zero_stage": variant["zero"],
                "assumed": "; ".join(row.assumed),
                "skipped": "",
            }
        )
    for row in table.skipped:
        head = {key: row.row.get(key, "") for key in ("row_id", "family", "model", "grade")}
        lines.append({**dict.fromkeys(COLUMNS, ""), **head, "moe": int(row.moe), "scored": 0, "skipped": row.skipped})
    return lines


_GAUGES = ("allocated", "reserved", "device")


def write_rows(path: Path, lines: Sequence[dict[str, Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as handle:
        writer = csv.DictWriter(handle, fieldnames=COLUMNS)
        writer.writeheader()
        writer.writerows(lines)


def report(figures: dict[str, Any]) -> str:
    """The figures as a table for people."""
    lines = [f"{'family':<18}{'rows':>5}{'median':>9}{'bias':>9}{'p90':>8}{'inside':>8}"]
    for name, f in figures["families"].items():
        lines.append(
            f"{name:<18}{f['rows']:>5}{f['median_abs_error']:>9.1%}{f['bias']:>+9.1%}"
            f"{f['p90_abs_error']:>8.1%}{f['coverage']:>8.0%}"
        )
    for key, value in figures.items():
        if key not in ("families", "spearman_sweeps"):
            lines.append(f"{key:<36}{value:.4g}" if isinstance(value, float) else f"{key:<36}{value}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m headwater.plan.evaluate", description=__doc__.splitlines()[0])
    parser.add_argument("table", nargs="?", help="CSV of published runs; the packaged one when left out")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--rows", metavar="OUT.csv", help="write every row with prediction and interval")
    options = parser.parse_args(arguments)
    try:
        rows = read_table(options.table)
        table = build(rows, rows + read_table())
        predictions = predict(table, load())
        figures = evaluate(table, predictions)
        if options.rows:
            write_rows(Path(options.rows), row_lines(table, predictions))
    except HeadwaterError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print(json.dumps(figures, indent=2) if options.json else report(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
