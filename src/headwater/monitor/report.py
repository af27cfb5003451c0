"""The report of a run, or of several side by side: one HTML file that carries everything and asks for nothing.

In: run folders, and what others know of the run (evaluation, curation, lineage). Out: `report.html`, drawn by the same
script as the dashboard, for light and dark, wide screens and phones.

    write_report(Path("runs/4f2a"), Path("report.html"), {"title": "quickstart", "tables": [...]})
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headwater.core.files import atomic_write
from headwater.core.jsonl import parse_json
from headwater.monitor.web.page import report_page
from headwater.monitor.web.reader import RunReader

KNOWN = "report.json"
"""In a run's folder: what is known of the run beside its own record, as the pipeline left it (the keys of `extra`)."""

POINTS = 500
HEAT_STEPS = 120


def write_report(
    run_dir: Path, out: Path, extra: Mapping[str, Any] | None = None, *, compare: Sequence[Path] = ()
) -> Path:
    """Write the report of the run in `run_dir` to `out`; with `compare`, of all those runs in one page.

    `extra` (default: `report.json` of the run), every key optional:
      `title`, `subtitle`  text at the top
      `headline`           list of {label, value, note}: the figures shown first
      `tables`             list of {title, columns, rows, note}: evaluation results, baselines ...
      `samples`            list of {prompt, text, note}; default: the last of `samples.jsonl`
      `lineage`            list of {stage, fingerprint, note}: where the data came from
      `recipe`             text of the resolved recipe; default: `recipe.yaml` of the run
    """
    runs = [_run(path) for path in (run_dir, *compare)]
    extra = _known(run_dir) if extra is None else extra
    if compare:  # what is known of the first run alone does not describe all of them
        names = [run["view"]["name"] for run in runs]
        data: dict[str, Any] = {"title": "Runs compared", "subtitle": " · ".join(names)}
    else:
        state = runs[0]["view"]["status"]["words"]
        data = {"title": run_dir.resolve().name, "subtitle": f"run {run_dir.resolve().name} · {state}", **extra}
    written = f"written {time.strftime('%Y-%m-%d %H:%M')}"
    page = report_page({**data, "written": written, "runs": runs})
    out.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(out, page)
    return out


def _run(path: Path) -> dict[str, Any]:
    reader = RunReader(path.resolve())
    reader.refresh()
    maps = [reader.heat(item["key"], HEAT_STEPS) for item in reader.heat(None)["metrics"]]
    return {"summary": reader.summary(), "view": reader.view(POINTS), "heat": maps}


def _known(run_dir: Path) -> dict[str, Any]:
    try:
        value = parse_json((run_dir / KNOWN).read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
