"""A suite's result for people: Markdown, and one HTML page that asks nothing of the network and holds every item.

write_results(found, Path("scores"))     # results.json, results.md, results.html beside records/
"""

from __future__ import annotations

import base64
import gzip
import html
from pathlib import Path
from typing import Any

from headwater.core.files import atomic_write
from headwater.core.jsonl import canonical_json, json_safe, pretty_json
from headwater.evaluate.tasks.suite import SuiteResult, notes, protocol_in_words, shown

_PAGE = Path(__file__).with_name("report.html")


def markdown(found: SuiteResult) -> str:
    """Tables of figures, then what each number means and what it leaves out."""
    model = found.model
    lines = [f"# {model['name']}", ""]
    facts = ", ".join(f"{name} {value}" for name, value in model.items() if name != "name" and value not in (None, []))
    lines += [facts, "", "| task | figure | value | standard error | n | fingerprint |", "|---|---|---:|---:|---:|---|"]
    for name, result in found.results.items():
        for metric in sorted(result.metrics, key=lambda key: key != result.headline):
            figure = result.metrics[metric]
            error = "" if figure.stderr is None else f"{figure.stderr:.3g}"
            bold = "**" if metric == result.headline else ""
            value = f"{bold}{figure.value:.4g}{bold}"
            lines.append(f"| {name} | {metric} | {value} | {error} | {figure.n:,} | {result.fingerprint} |")
    for name, result in found.results.items():
        lines += ["", f"## {name}", "", found.specs[name].title, ""]
        lines += [f"- {key}: `{value!r}`" for key, value in protocol_in_words(found.specs[name]).items()]
        lines += [f"- data: {result.protocol['source']}", *(f"- {note}" for note in notes(result))]
        lines += [f"- row {row} {reason}" for row, reason in result.set_aside[:10]]
        if result.groups:
            lines += ["", f"| group | {result.headline} | n |", "|---|---:|---:|"]
            for group, metrics in result.groups.items():
                if result.headline in metrics:
                    figure = metrics[result.headline]
                    lines.append(f"| {group} | {shown(figure)} | {figure.n:,} |")
    if found.not_run:
        lines += ["", "## Not run", "", *(f"- {name}: {reason}" for name, reason in found.not_run.items())]
    if found.limit is not None:
        lines += ["", f"Only the first {found.limit:,} rows of each task were taken."]
    return "\n".join([*lines, *_contamination(found), ""])


def _contamination(found: SuiteResult) -> list[str]:
    """Scores with and without items that stand in the training text."""
    if not found.contamination:
        return []
    lines = [
        "", "## Contamination", "",
        "| task | items | contaminated | overlapping | figure | all | without contaminated | without overlapping |",
        "|---|---:|---:|---:|---|---:|---:|---:|",
    ]  # fmt: skip
    for name, facts in found.contamination.items():
        result = found.results[name]
        key = result.headline
        figure = result.metrics.get(key)
        cells = [f"{figure.value:.4g}" if figure else "–"]
        for kept in ("without_contaminated", "without_overlap"):
            value = facts["metrics"].get(kept, {}).get(key)
            cells.append(f"{value['value']:.4g}" if value else "–")
        lines.append(
            f"| {name} | {facts['checked']:,} | {facts['contaminated']:,} | {facts['overlapping']:,} | {key} | "
            f"{' | '.join(cells)} |"
        )
    one = next(iter(found.contamination.values()))
    lines += [
        "",
        f"Against {one['documents']:,} documents of {one['training_text']}. Contaminated: at least "
        f"{one['threshold']:.0%} of a text of the item stands in one document; overlapping: {one['width']} units in a "
        "row do. The passages are in the records.",
    ]
    return lines


def page(found: SuiteResult) -> str:
    """The HTML page. Items are packed (gzip, base64) and unpacked by the browser."""
    tasks = {
        name: {"headline": result.headline, "records": list(map(_brief, result.records))}
        for name, result in found.results.items()
    }
    packed = base64.b64encode(gzip.compress(canonical_json(json_safe(tasks)), mtime=0)).decode()
    template = _PAGE.read_text("utf-8")
    title = html.escape(str(found.model["name"]))
    return template.replace("{{title}}", title).replace("{{body}}", _body(found)).replace("{{items}}", packed)


def _brief(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if value not in (None, [], "")}


def _body(found: SuiteResult) -> str:
    facts = " · ".join(
        f"{key} {value}" for key, value in found.model.items() if key != "name" and value not in (None, [])
    )
    parts = [f"<p class=facts>{html.escape(facts)}</p>"]
    if found.limit is not None:
        parts.append(f"<p class=note>Only the first {found.limit:,} rows of each task were taken.</p>")
    parts.append(
        "<table><tr><th>task<th>figure<th class=n>value<th class=n>standard error<th class=n>n<th>fingerprint</tr>"
    )
    for name, result in found.results.items():
        for metric in sorted(result.metrics, key=lambda key: key != result.headline):
            figure = result.metrics[metric]
            mark = " class=head" if metric == result.headline else ""
            error = "" if figure.stderr is None else f"{figure.stderr:.3g}"
            cells = f"<td>{html.escape(name)}<td>{html.escape(metric)}<td class=n>{figure.value:.4g}<td class=n>{error}"
            parts.append(f"<tr{mark}>{cells}<td class=n>{figure.n:,}<td><code>{result.fingerprint}</code></tr>")
    parts.append("</table>")
    for name, result in found.results.items():
        parts.append(f"<section id='{html.escape(name)}'><h2>{html.escape(name)}</h2>")
        parts.append(f"<p>{html.escape(found.specs[name].title)}</p>")
        parts += [f"<p class=note>{html.escape(note)}</p>" for note in notes(result)]
        parts += [f"<p class=note>row {row} {html.escape(why)}</p>" for row, why in result.set_aside[:20]]
        words = protocol_in_words(found.specs[name]) | {"data": result.protocol["source"]}
        rows = "".join(f"<tr><td>{key}<td><code>{html.escape(repr(value))}</code></tr>" for key, value in words.items())
        parts.append(f"<details><summary>protocol</summary><table>{rows}</table></details>")
        if result.groups:
            rows = "".join(
                f"<tr><td>{html.escape(group)}<td class=n>{shown(metrics[result.headline])}</tr>"
                for group, metrics in result.groups.items()
                if result.headline in metrics
            )
            parts.append(f"<details><summary>groups</summary><table>{rows}</table></details>")
        parts.append(f"<div class=items data-task='{html.escape(name)}'></div></section>")
    if found.not_run:
        parts.append("<h2>Not run</h2>")
        parts += [f"<p class=note>{html.escape(f'{name}: {why}')}</p>" for name, why in found.not_run.items()]
    return "\n".join(parts)


def write_results(found: SuiteResult, out: Path) -> None:
    """results.json, results.md and results.html, each whole or not at all."""
    out.mkdir(parents=True, exist_ok=True)
    atomic_write(out / "results.json", pretty_json(json_safe(found.as_json())))
    atomic_write(out / "results.md", markdown(found).encode("utf-8", "surrogatepass"))
    atomic_write(out / "results.html", page(found).encode("utf-8", "replace"))
