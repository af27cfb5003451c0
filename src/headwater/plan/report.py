"""One HTML page for a plan, complete in itself: figures, memory, time, cost against days, the pipeline's timeline.

Path("plan.html").write_text(html(plan, found))
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from . import svg
from .pipeline_events import EVENT_SCHEDULES, simulate
from .pipeline_vshape import simulate_v
from .plan import LABELS, Plan
from .search import Found
from .text import dollars, full, why_text

DRAWN_MICRO_BATCHES = 24  # a timeline of more is unreadable; the ramps are the same
STYLE = """:root{color-scheme:light dark;--ink:#222;--page:#fff;--soft:#f6f6f6;--line:#ddd;--warn:#fbf3f3}
@media(prefers-color-scheme:dark){:root{--ink:#ddd;--page:#181818;--soft:#242424;--line:#444;--warn:#33211f}}
body{font:15px/1.5 system-ui,sans-serif;max-width:1100px;margin:2em auto;padding:0 1em;color:var(--ink);
background:var(--page)}h1{font-size:1.6em;overflow-wrap:anywhere}
pre{background:var(--soft);padding:1em;overflow:auto}h2{margin-top:2em}table{border-collapse:collapse}
td,th{padding:.25em .8em;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
td:first-child,th:first-child{text-align:left}.wide{overflow-x:auto}svg{display:block}
.cards{display:flex;flex-wrap:wrap;gap:1em}.card{border:1px solid var(--line);border-radius:6px;padding:.6em 1em}
.card b{display:block;font-size:1.4em}
.warn{border-left:4px solid #c44e52;padding:.3em .8em;margin:.5em 0;background:var(--warn)}"""


def _cards(plan: Plan) -> str:
    d = plan.data
    days, cost, speed, held = d["days"], d["cost"], d["throughput"], d["memory"]
    cards = (
        (f"{days['p50']:.1f} days", f"80 %: {days['p10']:.1f} to {days['p90']:.1f}"),
        (dollars(cost["p50"]["rented"]), "rented compute"),
        (f"{dollars(cost['p50']['all_in_low'])} to {dollars(cost['p50']['all_in_high'])}", "all-in"),
        (f"{speed['tokens_per_second_per_gpu']:,.0f}", "tokens/s a GPU"),
        (f"{speed['mfu']:.1%}", "MFU, all scores counted"),
        (f"{held['device_bytes'] / 2**30:.0f} of {held['capacity_bytes'] / 2**30:.0f} GiB", "a GPU"),
        (f"{d['failures']['goodput']:.1%}", "of time kept from failures"),
    )
    return (
        '<div class="cards">'
        + "".join(f'<div class="card"><b>{escape(a)}</b>{escape(b)}</div>' for a, b in cards)
        + "</div>"
    )


def _memory(plan: Plan) -> str:
    stages = plan.data["memory"]["stages"]
    bars = {stage: {name: value / 2**30 for name, value in parts.items()} for stage, parts in stages.items()}
    usable = plan.data["memory"]["usable_bytes"] / 2**30
    return svg.stacked_bars(bars, "GiB", limit=usable, limit_label=f"usable {usable:.0f} GiB")


def _time(plan: Plan) -> str:
    step = plan.data["step"]
    order = sorted(step["components"], key=lambda name: -step["components"][name])
    pieces = {LABELS[name]: step["components"][name] * 1e3 for name in order if step["components"][name] > 0}
    return svg.stacked_bars({"step": pieces}, "ms")


def _pipeline(plan: Plan) -> str:
    x, step = plan.layout, plan.data["step"]
    if x.pp == 1:
        return "<p>One stage: no pipeline.</p>"
    m = min(step["micro_batches"], DRAWN_MICRO_BATCHES)
    chunk = step["chunk_seconds"]
    times = {"forward": chunk["forward"], "dgrad": chunk["dgrad"], "wgrad": chunk["wgrad"]}
    note = ""
    if x.schedule == "zbv":
        events = simulate_v(ranks=x.pp, micro_batches=m, **times)
    elif x.schedule == "interleaved_1f1b":
        m = max(x.pp, m - m % x.pp)
        events = simulate(x.schedule, ranks=x.pp, micro_batches=m, chunks=x.chunks, **times)
    else:
        drawn = x.schedule if x.schedule in EVENT_SCHEDULES else "zb_h1"
        if drawn != x.schedule:
            note = f"<p>Drawn as {drawn}; {escape(x.schedule)} idles {step['bubble_share']:.1%}.</p>"
        events = simulate(drawn, ranks=x.pp, micro_batches=m, **{k: v * x.chunks for k, v in times.items()})
    shown = "" if m == step["micro_batches"] else f"<p>{m} of {step['micro_batches']} micro-batches are drawn.</p>"
    return note + shown + svg.timeline(events)


def _pareto(plan: Plan, found: Found) -> str:
    front = sorted(found.pareto, key=lambda p: p["days"])
    points = [
        (p["days"], p["dollars"] / 1e6, f"{p['nodes']:.0f}",
         f"{p['nodes']:.0f} nodes: {p['days']:.1f} days, {dollars(p['dollars'])}")
        for p in front
    ]  # fmt: skip
    nodes = [p["nodes"] for p in front]
    chosen = nodes.index(plan.cluster.nodes) if plan.cluster.nodes in nodes else -1
    said = "<p>The fastest layout on so many nodes; numbers that others beat in both are left out.</p>"
    return said + svg.scatter(points, "days", "rented compute, million dollars", chosen)


def _alternatives(found: Found) -> str:
    rows = "".join(
        f"<tr><td>{escape(layout.describe())}</td><td>{found.step_seconds[i]:.3g}</td><td>{found.days[i]:.1f}</td>"
        f"<td>{dollars(float(found.dollars[i]))}</td><td>{found.device_bytes[i] / 2**30:.0f}</td></tr>"
        for i, layout in enumerate(found.layouts[:12])
    )
    head = "<tr><th>layout</th><th>step s</th><th>days</th><th>rented</th><th>GiB</th></tr>"
    table = f'<div class="wide"><table>{head}{rows}</table></div>'
    return f"<p>{found.considered:,} layouts considered, {found.fitting:,} fit.</p>{table}"


def html(plan: Plan, found: Found | None = None, reasons: dict[str, Any] | None = None) -> str:
    """The page. `found` adds the alternatives and days against dollars, `reasons` the gains of each knob."""
    sections: list[tuple[str, str]] = [
        ("", _cards(plan)),
        ("Memory by stage", _memory(plan)),
        ("Time of a step", _time(plan)),
    ]
    sections.append(("Pipeline", _pipeline(plan)))
    if found is not None and found.pareto:
        sections.append(("Days against dollars, by cluster size", _pareto(plan, found)))
        sections.append(("Other layouts", _alternatives(found)))
    if plan.data["warnings"]:
        sections.append(("Warnings", _warnings(plan.data["warnings"])))
    if reasons is not None:
        sections.append(("Why", f"<pre>{escape(why_text(reasons))}</pre>"))
    sections.append(("All figures", f"<pre>{escape(full(plan))}</pre>"))
    body = "".join((f"<h2>{escape(name)}</h2>" if name else "") + part for name, part in sections)
    title = f"{plan.model.name} on {plan.data['cluster']['describe']}"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width,initial-scale=1"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style></head><body><h1>{escape(title)}</h1>"
        f"<p>{escape(plan.layout.describe())}</p>{body}</body></html>\n"
    )


def _warnings(items: Sequence[dict[str, Any]]) -> str:
    return "".join(
        f'<div class="warn">{escape(w["what"])}<br><small>mend: {escape(w["mend"])}</small></div>' for w in items
    )
