"""A plan in words and tables for a terminal: plain rows, no library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .plan import LABELS, Plan
from .quantities import four_digits, human

Row = tuple[str, ...]


def table(rows: Sequence[Row], *, indent: str = "  ") -> str:
    """Rows in aligned columns; the first column to the left, the others to the right."""
    if not rows:
        return ""
    widths = [max(len(row[i]) for row in rows if i < len(row)) for i in range(max(len(row) for row in rows))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])] + [cell.rjust(widths[i + 1]) for i, cell in enumerate(row[1:])]
        lines.append((indent + "  ".join(cells)).rstrip())
    return "\n".join(lines)


def _gib(value: float) -> str:
    return f"{value / 2**30:.1f}"


def dollars(value: float) -> str:
    """`$1.23M`, `$456K`."""
    for suffix, scale in (("B", 1e9), ("M", 1e6), ("K", 1e3)):
        if value >= scale:
            return f"${value / scale:.3g}{suffix}"
    return f"${value:.0f}"


def span(days: float) -> str:
    """`12.3 days`, `5.1 hours`, `40 minutes`."""
    if days >= 1.0:
        return f"{days:,.1f} days"
    return f"{days * 24:.1f} hours" if days * 24 >= 1.0 else f"{days * 1440:.1f} minutes"


def summary(plan: Plan) -> str:
    """The answer in a dozen lines."""
    d = plan.data
    speed, days, cost, held = d["throughput"], d["days"], d["cost"], d["memory"]
    fits = "fits" if held["fits"] else "DOES NOT FIT"
    width = (speed["high"] - speed["tokens_per_second_per_gpu"]) / speed["tokens_per_second_per_gpu"]
    runnable = d["runnable"]
    rule, failures = cost["rule_of_thumb"], d["failures"]
    each = speed["tokens_per_second_per_gpu"]
    rows: list[Row] = [
        ("model", f"{human(d['model']['parameters'])} parameters, {human(d['model']['flops_per_token'])}FLOP a token"),
        ("cluster", d["cluster"]["describe"]),
        ("layout", d["layout"]["describe"]),
        ("memory", f"{_gib(held['device_bytes'])} GiB of {_gib(held['capacity_bytes'])} a GPU ({fits})"),
        ("step", f"{d['step']['seconds']:.3g} s, {d['train']['steps']:,} steps"),
        (
            "speed",
            f"{speed['tokens_per_second']:,.0f} tokens/s, {each:,.0f} a GPU "
            f"(80 %: x{1 / (1 + width):.2f} to x{1 + width:.2f})",
        ),
        ("MFU", f"{speed['mfu']:.1%} all scores, {speed['mfu_causal']:.1%} causal; HFU {speed['hfu']:.1%}"),
        ("time", f"{span(days['p50'])}  (p10 {span(days['p10'])}, p90 {span(days['p90'])})"),
        (
            "rented",
            f"{dollars(cost['p50']['rented'])}  (p10 {dollars(cost['p10']['rented'])}, "
            f"p90 {dollars(cost['p90']['rented'])}) at ${cost['price_per_gpu_hour']:.2f} a GPU-hour",
        ),
        ("all-in", f"{dollars(cost['p50']['all_in_low'])} to {dollars(cost['p50']['all_in_high'])}"),
        ("rule", f"{dollars(rule['all_in_low'])} to {dollars(rule['all_in_high'])} all-in by {rule['what']}"),
        ("energy", f"{cost['p50']['energy_kwh'] / 1000:,.0f} MWh"),
        (
            "failures",
            f"{failures['expected']:.0f} expected, one in {failures['hours_between']:.1f} h; checkpoint every "
            f"{failures['checkpoint_interval_seconds'] / 60:.1f} min; {failures['goodput']:.1%} of time kept",
        ),
        ("runnable", "yes" if runnable["runnable"] else f"no: {runnable['reason']}"),
    ]
    return "\n".join(f"  {name:<9} {value}" for name, value in rows)


def memory_table(plan: Plan) -> str:
    stages = plan.data["memory"]["stages"]
    names = list(next(iter(stages.values())))
    rows: list[Row] = [("GiB a GPU", *stages)]
    rows += [(name, *(_gib(stage[name]) for stage in stages.values())) for name in names]
    rows.append(("allocated", *(_gib(sum(stage.values())) for stage in stages.values())))
    held = plan.data["memory"]
    return (
        table(rows)
        + f"\n  fullest stage: allocated {_gib(held['allocated_bytes'])}, reserved "
        + (f"{_gib(held['reserved_bytes'])}, device {_gib(held['device_bytes'])} GiB; {held['binds']} binds")
    )


def step_table(plan: Plan) -> str:
    step = plan.data["step"]
    order = sorted(step["components"], key=lambda name: -step["components"][name])
    rows: list[Row] = [("step", "ms", "share")]
    rows += [
        (LABELS[name], f"{step['components'][name] * 1e3:,.1f}", f"{step['shares'][name]:.1%}")
        for name in order
        if step["shares"][name] >= 0.0005
    ]
    return table([*rows, ("total", f"{step['seconds'] * 1e3:,.1f}", "100.0%")])


def warnings_text(plan: Plan) -> str:
    return "\n".join(f"  ! {w['what']}\n    mend: {w['mend']}" for w in plan.data["warnings"])


def full(plan: Plan) -> str:
    """Summary, memory, step, scaling advice and warnings."""
    s = plan.data["scaling"]
    advice = (
        f"  {s['tokens_per_parameter']:.1f} tokens a parameter; compute-optimal for this budget: "
        f"{human(s['optimal_parameters'])} parameters ({human(s['optimal_parameters_low'])} to "
        f"{human(s['optimal_parameters_high'])}) on {human(s['optimal_tokens'])} tokens ({s['law']})"
    )
    parts = [summary(plan), memory_table(plan), step_table(plan), advice]
    if plan.data["warnings"]:
        parts.append(warnings_text(plan))
    return "\n\n".join(parts)


def why_text(reasons: dict[str, Any]) -> str:
    rows: list[Row] = [("knob", "speed", "step s", "GiB", "")]
    rows += [
        (
            gain["knob"],
            f"{gain['gain']:+.1%}",
            f"{gain['step_seconds']:.3g}",
            f"{gain['device_gib']:.0f}",
            "" if gain["fits"] else "does not fit",
        )
        for gain in reasons["gains"]
    ]
    out = [
        f"  time: {LABELS[reasons['time_binds']]} binds; memory: {reasons['memory_binds']} binds "
        f"({reasons['memory_share']:.0%} of the GPU)",
        table(rows),
    ]
    runner = reasons.get("runner_up")
    if runner:
        lost = [(name, delta) for name, delta in runner["components"].items() if abs(delta) > 1e-4][:4]
        why = ", ".join(f"{LABELS[name]} {delta * 1e3:+,.0f} ms" for name, delta in lost)
        out.append(f"  runner-up: {runner['layout']}\n  slower by {runner['slower_by']:.1%}: {why}")
    return "\n\n".join(out)


def difference_text(entry: dict[str, Any]) -> str:
    figures = entry["figures"]
    rows: list[Row] = [("", "before", "after", "ratio")]
    for name, f in figures.items():
        ratio = f"x{f['ratio']:.3f}" if f["ratio"] is not None else ""
        rows.append((name, _figure(name, f["before"]), _figure(name, f["after"]), ratio))
    before, after = entry["before"], entry["after"]
    differ = [key for key in ("model", "work") if before[key] != after[key]]
    head = "".join(
        f"  {name + ':':<8}" + "; ".join(side[key] for key in (*differ, "cluster", "layout")) + "\n"
        for name, side in (("before", before), ("after", after))
    )
    moved = [(n, v) for n, v in entry["components_seconds"].items() if abs(v) > 1e-4][:5]
    tail = "  a step: " + ", ".join(f"{LABELS.get(n, n)} {v * 1e3:+,.0f} ms" for n, v in moved) if moved else ""
    best = entry.get("each_at_its_best")
    if best:
        d = best["figures"]["days_p50"]
        sides = (best[key]["layout"] for key in ("before", "after"))
        tail += (
            f"\n  each with its own best layout: {d['before']:.1f} days and {d['after']:.1f} days (x{d['ratio']:.3f})"
        )
        tail += "".join(f"\n    {name}: {layout}" for name, layout in zip(("before", "after"), sides, strict=True))
    return head + table(rows) + "\n" + tail


def _figure(name: str, value: float) -> str:
    if name.endswith("_share") or name in ("mfu", "goodput"):
        return f"{value:.1%}"
    if name.endswith("_bytes"):
        return f"{value / 2**30:.1f} GiB"
    if name.endswith("_dollars"):
        return dollars(value)
    return four_digits(value)
