"""A flight as text, plain values and a page.

print(text(report, rows)); json.dumps(values(report, rows)); page(report, rows)
"""

from __future__ import annotations

from collections import defaultdict
from html import escape
from typing import Any

from headwater.plan.report import STYLE
from headwater.simulate.compare import Row, as_json
from headwater.simulate.flight import FlightReport

GIB = 2.0**30


def text(report: FlightReport, rows: list[Row], *, width: int = 100) -> str:
    """What a person reads."""
    parallel = report.flight.parallel
    of = f" of {report.micro_batches}" if report.simulated < report.micro_batches else ""
    lines = [
        f"{parallel.describe()}",
        f"  a step of {report.simulated}{of} micro-batches of {report.flight.micro_batch} x "
        f"{report.flight.seq_len:,} tokens, "
        f"{report.flight.precision}, on {len(report.ranks)} of {parallel.ranks:,} ranks: shapes and divisibility hold",
        f"  simulated in {report.seconds:.0f} s "
        f"({sum(rank.cpu_seconds for rank in report.ranks):.0f} s of processor time) "
        f"with {report.peak_bytes / GIB:.2f} GiB "
        f"({sum(rank.operations for rank in report.ranks):,} operations)",
        *_repeated(report),
        "",
        "memory of a rank at its peak, GiB",
    ]
    kinds = _kinds(report)
    lines.append(f"  {'rank':<8}" + "".join(f"{kind:>13}" for kind in [*kinds, "allocated", "reserved"]))
    for rank in report.ranks:
        figures = [rank.at_peak.get(kind, 0) for kind in kinds] + [rank.allocated_bytes, rank.reserved_bytes]
        lines.append(f"  {rank.rank:<8}" + "".join(f"{figure / GIB:>13.2f}" for figure in figures))
    lines += ["", "messages of a rank in a step (on the wire, GiB)"]
    for rank, flows in zip(report.ranks, report.flows, strict=True):
        found: defaultdict[str, list[str]] = defaultdict(list)
        for flow in flows:
            if flow["operation"] != "receive":
                found[flow["axis"]].append(f"{flow['operation']} {flow['calls']:,} x, {flow['wire_bytes'] / GIB:,.2f}")
        texts = [f"{axis}: {', '.join(parts)}" for axis, parts in found.items()]
        lines.append(f"  {rank.place}")
        lines += [f"      {part}" for part in texts]
    if report.timeline.spans and parallel.pp > 1:
        lines += [
            "",
            f"schedule as run: {parallel.schedule}, {report.timeline.bubble:.1%} of the step idle if products took all "
            "the time (digits forward, letters back, w weight gradients; of passes in one column the last is shown)",
            report.timeline.ascii(width),
        ]
    if rows:
        lines += ["", "beside the planner", f"  {'stage':<8}{'figure':<24}{'simulated':>11}{'planned':>11}{'ratio':>8}"]
        for row in rows:
            why = f"  {row.why}" if row.why else ""
            lines.append(
                f"  {row.stage:<8}{row.figure:<24}{row.simulated / GIB:>11.2f}{row.planned / GIB:>11.2f}"
                f"{row.ratio:>8.2f}{why}"
            )
    return "\n".join(lines)


def _repeated(report: FlightReport) -> list[str]:
    """How much of it was done again from a record, if any was."""
    again, passes = (
        sum(figures) for figures in zip(*((r.repeated, len(r.actions)) for r in report.ranks), strict=True)
    )
    if not again:
        return []
    return [f"  {again:,} of {passes:,} passes of stages repeat one that was run, whose like did the same to the byte"]


def _kinds(report: FlightReport) -> list[str]:
    found: dict[str, None] = {}
    for rank in report.ranks:
        found |= dict.fromkeys(kind for kind, size in rank.at_peak.items() if size > 1e-3 * rank.allocated_bytes)
    return list(found)


def values(report: FlightReport, rows: list[Row]) -> dict[str, Any]:
    """Plain values, for `--json`."""
    flight = report.flight
    return {
        "layout": flight.parallel.describe(),
        "ranks": flight.parallel.ranks,
        "micro_batches": report.micro_batches,
        "simulated_micro_batches": report.simulated,
        "micro_batch": flight.micro_batch,
        "seq_len": flight.seq_len,
        "precision": flight.precision,
        "seconds": report.seconds,
        "cpu_seconds": sum(rank.cpu_seconds for rank in report.ranks),
        "peak_process_bytes": report.peak_bytes,
        "idle": {"mean": report.timeline.bubble, "by_pipeline_rank": report.timeline.idle},
        "simulated": [
            {
                "rank": rank.rank,
                "place": rank.place,
                "stages": rank.stages,
                "allocated_bytes": rank.allocated_bytes,
                "reserved_bytes": rank.reserved_bytes,
                "at_peak": rank.at_peak,
                "after_step": rank.after_step,
                "repeated_passes": rank.repeated,
                "flops": rank.flops * report.micro_batches / report.simulated,
                "clipped": rank.outcome.get("clip_factor", 1.0) < 1.0,
                "traffic": flows,
            }
            for rank, flows in zip(report.ranks, report.flows, strict=True)
        ],
        "compared": as_json(rows),
    }


def page(report: FlightReport, rows: list[Row]) -> str:
    """One HTML page: the figures, and the schedule drawn."""
    drawing = report.timeline.svg() if report.timeline.spans else ""
    plain = text(report, rows, width=140)
    head, _, tail = plain.partition("\nschedule as run")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1"><title>Flight of a layout</title>'
        f"<style>{STYLE}body{{max-width:1280px}}pre{{font-size:12px}}</style></head><body>"
        f'<h1>{escape(report.flight.parallel.describe())}</h1><div class="wide">{drawing}</div>'
        f"<pre>{escape(head)}</pre><pre>{escape('schedule as run' + tail) if tail else ''}</pre></body></html>\n"
    )
