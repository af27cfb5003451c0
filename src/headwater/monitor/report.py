"""The report of a run: one HTML file that carries everything, for light and dark, wide screens and phones.

In: a run folder's record, and what others know of the run (evaluation, lineage, samples). Out: `report.html` without
a single request to anywhere.

    write_report(Path("runs/4f2a"), Path("report.html"), {"title": "quickstart", "tables": [...]})
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from headwater.core.files import atomic_write
from headwater.core.jsonl import parse_json, read_jsonl
from headwater.monitor.console import duration
from headwater.monitor.record import read_metrics
from headwater.monitor.registry import METRICS
from headwater.monitor.svg import Series, line_chart

SAMPLES_SHOWN = 12


def write_report(run_dir: Path, out: Path, extra: Mapping[str, Any] | None = None) -> Path:
    """Write the report of the run in `run_dir` to `out`.

    `extra`, every key optional:
      `title`, `subtitle`  text at the top
      `headline`           list of {label, value, note}: the figures shown first
      `tables`             list of {title, columns, rows, note}: evaluation results, baselines ...
      `samples`            list of {prompt, text, note}; default: the last of `samples.jsonl`
      `lineage`            list of {stage, fingerprint, note}: where the data came from
      `recipe`             text of the resolved recipe; default: `recipe.yaml` of the run
    """
    extra = extra or {}
    record = _read_json(run_dir / "run.json")
    final = _read_json(run_dir / "final.json")
    rows = list(read_metrics(run_dir / "metrics.jsonl"))
    samples = extra.get("samples") or _last_samples(run_dir / "samples.jsonl")
    recipe = extra.get("recipe") or _read_text(run_dir / "recipe.yaml")
    state = "finished" if final else "not finished"
    subtitle = extra.get("subtitle") or f"run {run_dir.name} · {state}"
    body = [
        f"<header><h1>{_e(extra.get('title') or run_dir.name)}</h1><p>{_e(subtitle)}</p></header>",
        _headline(extra.get("headline") or _default_headline(rows, record)),
        '<section><h2>Training</h2><div class="charts">',
        *_charts(rows),
        "</div></section>",
        *(_table(table) for table in extra.get("tables", ())),
        _table({"title": "The run", "columns": ["", ""], "rows": _facts(rows, record, final)}),
        _samples(samples),
        _lineage(extra.get("lineage", ())),
        _events(run_dir / "events.jsonl"),
        f"<section><h2>Recipe</h2><details><summary>as resolved</summary><pre>{_e(recipe)}</pre></details></section>"
        if recipe
        else "",
    ]
    page = files("headwater.monitor").joinpath("report.html").read_text("utf-8")
    page = page.replace("{{title}}", _e(extra.get("title") or run_dir.name)).replace("{{body}}", "\n".join(body))
    out.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(out, page.encode())
    return out


def _e(value: Any) -> str:
    return html.escape(str(value))


def _series(rows: Sequence[Mapping[str, Any]], key: str, name: str, **style: bool) -> Series:
    pairs = [(row["step"], row[key]) for row in rows if isinstance(row.get(key), int | float)]
    return Series(name, [p[0] for p in pairs], [p[1] for p in pairs], **style)


def _by_label(rows: Sequence[Mapping[str, Any]], key: str, marks: bool = True) -> list[Series]:
    """One series a label of a labelled metric, "all" first."""
    labels = sorted({label for row in rows for label in row.get(key) or ()}, key=lambda label: (label != "all", label))
    found = []
    for label in labels:
        pairs = [(row["step"], row[key][label]) for row in rows if (row.get(key) or {}).get(label) is not None]
        found.append(Series(label, [p[0] for p in pairs], [p[1] for p in pairs], marks=marks))
    return found


def _only_all(series: Iterable[Series], name: str) -> list[Series]:
    return [Series(name, s.xs, s.ys, marks=True) for s in series if s.name == "all"]


def _charts(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    loss = [
        _series(rows, "loss", "training", faint=True),
        _series(rows, "loss_sma", "training, moving average"),
        *_only_all(_by_label(rows, "val_loss"), "validation"),
        *_only_all(_by_label(rows, "val_loss_averaged"), "validation, averaged weights"),
    ]
    bits = _by_label(rows, "val_bits_per_byte")
    averaged = _only_all(_by_label(rows, "val_bits_per_byte_averaged"), "all, averaged weights")
    return [
        line_chart("Loss", METRICS["loss"].unit, loss),
        line_chart("Validation bits per byte", METRICS["val_bits_per_byte"].unit, [*bits, *averaged]),
        *([line_chart("Benchmarks", "during training", marks)] if (marks := _by_label(rows, "eval")) else []),
        line_chart("Learning rate", "of the main group", [_series(rows, "lr", "lr")]),
        line_chart("Gradient norm", "before clipping", [_series(rows, "grad_norm", "norm")], log_y=True),
        line_chart("Throughput", METRICS["throughput"].unit, [_series(rows, "throughput", "tokens/s")]),
        line_chart("Memory", "bytes", [_series(rows, "mem_allocated", "allocated")]),
    ]


def _default_headline(rows: Sequence[Mapping[str, Any]], record: Mapping[str, Any]) -> list[dict[str, str]]:
    if not rows:
        return [{"label": "steps", "value": "0", "note": "nothing recorded yet"}]
    last = rows[-1]
    validated: Mapping[str, Any] = next((row for row in reversed(rows) if row.get("val_loss")), {})
    tiles = []
    bits = (validated.get("val_bits_per_byte_averaged") or validated.get("val_bits_per_byte") or {}).get("all")
    if bits is not None:
        tiles.append(
            {"label": "validation bits per byte", "value": f"{bits:.3f}", "note": f"step {validated['step']:,}"}
        )
    loss = (validated.get("val_loss_averaged") or validated.get("val_loss") or {}).get("all")
    if loss is not None:
        tiles.append({"label": "validation loss", "value": f"{loss:.3f}", "note": "nats per token"})
    tiles.append({"label": "steps", "value": f"{last['step']:,}", "note": f"of {record.get('steps', last['step']):,}"})
    tiles.append({"label": "tokens", "value": f"{last.get('tokens', 0):,}", "note": "read"})
    return tiles


def _headline(tiles: Iterable[Mapping[str, Any]]) -> str:
    cells = "".join(
        f"<div><span>{_e(tile['label'])}</span><b>{_e(tile['value'])}</b>"
        f"<small>{_e(tile.get('note', ''))}</small></div>"
        for tile in tiles
    )
    return f'<section class="tiles">{cells}</section>'


def _table(table: Mapping[str, Any]) -> str:
    rows = table.get("rows") or ()
    if not rows:
        return ""
    numeric = [any(_is_number(row[index]) for row in rows) for index in range(len(table["columns"]))]
    head = "".join(
        f'<th class="number">{_e(column)}</th>' if number else f"<th>{_e(column)}</th>"
        for column, number in zip(table["columns"], numeric, strict=True)
    )
    body = "".join("<tr>" + "".join(_cell(cell) for cell in row) + "</tr>" for row in rows)
    note = f'<p class="note">{_e(table["note"])}</p>' if table.get("note") else ""
    header = f"<thead><tr>{head}</tr></thead>" if any(table["columns"]) else ""
    return (
        f'<section><h2>{_e(table["title"])}</h2><div class="scroll"><table>{header}<tbody>{body}</tbody></table></div>'
        f"{note}</section>"
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cell(value: Any) -> str:
    if not _is_number(value):
        return f"<td>{_e('' if value is None else value)}</td>"
    text = f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
    return f'<td class="number">{text}</td>'


def _facts(
    rows: Sequence[Mapping[str, Any]], record: Mapping[str, Any], final: Mapping[str, Any]
) -> list[tuple[str, str]]:
    facts: list[tuple[str, str]] = [(str(k), str(v)) for k, v in (record.get("facts") or {}).items()]
    if rows:
        last = rows[-1]
        facts.append(("steps done", f"{last['step']:,} of {record.get('steps', last['step']):,}"))
        facts.append(("tokens read", f"{last.get('tokens', 0):,}"))
        spent = {
            "forward and backward": "forward_backward_seconds",
            "optimizer": "optimizer_seconds",
            "waiting for data": "data_wait_seconds",
            "checkpoints": "checkpoint_seconds",
            "validation and samples": "validation_seconds",
        }
        sums = {name: sum(row.get(key) or 0.0 for row in rows) for name, key in spent.items()}
        total = sum(sums.values())
        if total > 0:
            shares = ", ".join(f"{name} {seconds / total:.0%}" for name, seconds in sums.items() if seconds)
            facts.append(("time recorded", f"{duration(total)}: {shares}"))
        domains = last.get("domain_tokens") or {}
        if domains:
            seen = ", ".join(f"{name} {tokens:,}" for name, tokens in sorted(domains.items()))
            facts.append(("tokens by domain", seen))
    facts += [(f"{key} fingerprint", str(record[key])) for key in ("dataset", "tokenizer") if record.get(key)]
    if final:
        facts.append(("final checkpoint", str(final.get("checkpoint", ""))))
    return facts


def _samples(samples: Sequence[Mapping[str, Any]]) -> str:
    if not samples:
        return ""
    blocks = []
    for sample in samples[-SAMPLES_SHOWN:]:
        note = sample.get("note") or (f"step {sample['step']:,}" if "step" in sample else "")
        prompt, text = _e(sample.get("prompt", "")), _e(sample.get("text", ""))
        blocks.append(f"<article><small>{_e(note)}</small><pre><mark>{prompt}</mark>{text}</pre></article>")
    return f"<section><h2>Samples</h2>{''.join(blocks)}</section>"


def _lineage(lineage: Sequence[Mapping[str, Any]]) -> str:
    rows = [(item["stage"], item["fingerprint"], item.get("note", "")) for item in lineage]
    return _table({"title": "Lineage", "columns": ["stage", "fingerprint", ""], "rows": rows})


def _events(path: Path) -> str:
    if not path.exists():
        return ""
    shown = []
    for event in read_jsonl(path, on_broken=lambda *_: None):
        if event.get("event") in ("checkpoint", "device"):
            continue
        facts = {k: v for k, v in event.items() if k not in ("time", "event")}
        shown.append((event.get("event", ""), ", ".join(f"{k} {v}" for k, v in facts.items())))
    return _table({"title": "Events", "columns": ["event", ""], "rows": shown[-30:]})


def _last_samples(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return list(read_jsonl(path, on_broken=lambda *_: None))[-SAMPLES_SHOWN:]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = parse_json(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _read_text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
