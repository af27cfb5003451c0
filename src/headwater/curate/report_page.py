"""The report of a corpus as one HTML page without requests to anywhere: where the documents went, and samples to read.

In: `report.json`, `canaries.json`, samples from the audit, tokens by dataset. Out: HTML text.

    page = report_page(report, canaries, samples, tokens, title="corpus 0123456789abcdef")
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from html import escape
from typing import Any

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:72rem;padding:0 1rem;color:#1b1b1b;background:#fff}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2.2rem}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:.2rem .6rem;border-bottom:1px solid #e4e4e4}
th:first-child,td:first-child{text-align:left}
.bar{background:#e8edf3;height:.55rem;border-radius:2px;min-width:8rem}
.bar i{display:block;height:100%;background:#3b6ea5}
.loss .bar i{background:#c0653a}
details{margin:.6rem 0;border:1px solid #e4e4e4;border-radius:4px;padding:.4rem .8rem}
pre{white-space:pre-wrap;word-break:break-word;max-height:22rem;overflow:auto;background:#f7f7f7;padding:.6rem}
.pair{display:grid;grid-template-columns:1fr 1fr;gap:1rem}mark{background:#ffe9a8}.note{color:#666}
.table{overflow-x:auto}summary{overflow-wrap:anywhere}
@media(max-width:40rem){body{font-size:13px;margin:1rem auto;padding:0 .6rem}table{font-size:12px}.bar{display:none}
th,td{padding:.25rem .2rem}td:first-child{overflow-wrap:anywhere;min-width:5.5rem}.pair{grid-template-columns:1fr}}
@media(prefers-color-scheme:dark){body{background:#161616;color:#e4e4e4}th,td,details{border-color:#333}
pre{background:#222}.bar{background:#2b2f36}mark{background:#6b5514;color:inherit}.note{color:#999}}
"""
SHOWN_CHARACTERS = 3000
_FIELDS = ("documents", "bytes", "units")


def report_page(
    report: Mapping[str, Any],
    canaries: Mapping[str, Any] | None,
    samples: Sequence[Mapping[str, Any]],
    tokens: Mapping[str, Any],
    title: str,
) -> str:
    """The whole page."""
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(title)}</title>",
        f"<meta name=viewport content='width=device-width'><style>{_STYLE}</style><h1>{escape(title)}</h1>",
        _waterfall(report),
        _split_table(report, tokens),
        _groups("By language", report["by_language"]),
        _groups("By domain", report["by_domain"]),
        _canaries(canaries),
        _samples(samples),
    ]
    return "\n".join(part for part in parts if part)


def _table(columns: Iterable[str], rows: Iterable[tuple[str, Sequence[str]]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(f"<tr class='{kind}'>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>" for kind, cells in rows)
    return f"<div class=table><table><tr>{head}</tr>{body}</table></div>"


def _bar(share: float) -> str:
    return f"<div class=bar><i style='width:{100 * max(0.0, min(1.0, share)):.2f}%'></i></div>"


def _waterfall(report: Mapping[str, Any]) -> str:
    unit = " A unit is one CJK character, or one word or number." if "units" in report["in"] else ""
    bad = f" {report['unusable']:,} rows that could not be used are not among them." if report.get("unusable") else ""
    note = f"<p class=note>in = kept + dropped + cut + taken by cleaning, exactly.{unit}{bad}</p>"
    taken = [("taken by cleaning", report["edited"])] if report["edited"] else []
    return "<h2>Where it went</h2>" + _falls(report, taken) + note


def _falls(report: Mapping[str, Any], taken: Sequence[tuple[str, Mapping[str, int]]]) -> str:
    """What came in, what went by which reason, and what is left, of all or of one language or domain."""
    total = report["in"]
    fields = [field for field in _FIELDS if field in total]
    rows = [("", _cells("came in", total, fields, total))]
    rows += [("loss", _cells(rule, lost, fields, total)) for rule, lost in _by_size(report["dropped"])]
    whole = set(fields) - {"documents"}
    parts = [*((f"{rule} (cut)", lost) for rule, lost in _by_size(report.get("cut", {}))), *taken]
    rows += [("loss", _cells(name, lost, fields, total, shown=whole)) for name, lost in parts]
    rows.append(("", _cells("kept", report["out"], fields, total)))
    return _table(("", *fields, "share of bytes"), rows)


def _by_size(rows: Mapping[str, Mapping[str, int]]) -> list[tuple[str, Mapping[str, int]]]:
    return sorted(rows.items(), key=lambda item: (-item[1]["bytes"], item[0]))


def _cells(
    name: str,
    row: Mapping[str, int],
    fields: Sequence[str],
    total: Mapping[str, int],
    shown: Collection[str] = _FIELDS,
) -> list[str]:
    numbers = [f"{row[field]:,}" if field in row and field in shown else "" for field in fields]
    share = row["bytes"] / total["bytes"] if total["bytes"] else 0.0
    return [escape(name), *numbers, f"{_bar(share)}{share:.2%}"]


def _split_table(report: Mapping[str, Any], tokens: Mapping[str, Any]) -> str:
    rows = []
    for split, domains in report.get("splits", {}).items():
        for domain, counts in domains.items():
            packed = [f"{found.get(split, {}).get(domain, 0):,}" for found in tokens.values()]
            rows.append(("", [escape(f"{split} · {domain}"), *(f"{counts[field]:,}" for field in _FIELDS), *packed]))
    columns = ("", *_FIELDS, *(f"tokens in dataset {name}" for name in tokens))
    return "<h2>What there is to train on</h2>" + _table(columns, rows) if rows else ""


def _groups(title: str, table: Mapping[str, Any]) -> str:
    """Each language or domain: how much of it stays, and below that where the rest went."""
    if not table:  # the verb does not count by it
        return ""
    rows, details = [], []
    for name, row in sorted(table.items(), key=lambda item: -item[1]["in"]["bytes"]):
        total, kept = row["in"], row["out"]
        share = kept["bytes"] / total["bytes"] if total["bytes"] else 0.0
        numbers = [f"{side['documents']:,}" for side in (total, kept)]
        rows.append(("", [escape(name), *numbers, f"{_bar(share)}{share:.1%}"]))
        gone = row["dropped"].values()
        if not gone:  # nothing, or the verb does not count reasons by language
            continue
        taken = {
            field: total[field] - kept[field] - sum(lost[field] for lost in gone)
            for field in _FIELDS[1:]
            if field in total
        }
        falls = _falls(row, [("cut, or taken by cleaning", taken)] if any(taken.values()) else [])
        details.append(f"<details><summary>where {escape(name)} went</summary>{falls}</details>")
    head = ("", "documents in", "kept", "bytes kept")
    return f"<h2>{escape(title)}</h2>" + _table(head, rows) + "\n".join(details)


def _canaries(canaries: Mapping[str, Any] | None) -> str:
    if not canaries:
        return ""
    rows = [
        ("", [f"{row['lang']}, {row['edit']:.0%} of units changed", str(row["planted"]), str(row["duplicates"]),
              str(row["found"]), _share(row["recall"])])
        for row in canaries.get("duplicates", ())
    ]  # fmt: skip
    rows += [
        ("", [f"benchmark question, {row['edit']:.0%} of units changed", str(row["planted"]), "", str(row["found"]),
              _share(row["recall"])])
        for row in canaries.get("questions", ())
    ]  # fmt: skip
    columns = ("", "planted", f"of them duplicates (score {canaries['threshold']:g} or more)", "found", "recall")
    return "<h2>Canaries</h2>" + _table(columns, rows) if rows else ""


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _samples(samples: Sequence[Mapping[str, Any]]) -> str:
    if not samples:
        return ""
    parts = ["<h2>Removed, to read</h2>"]
    for one in sorted(samples, key=lambda row: str(row["rule"])):
        kept = f" · for {escape(one['kept_id'])}" if one["kept_id"] else ""
        detail = f" · {escape(one['detail'])}" if one["detail"] else ""
        head = f"{escape(one['rule'])} · score {one['score']:.4g} · {escape(one['id'])}{kept}{detail}"
        spans = [(span[0], span[1]) for span in one["spans"]]
        text = f"<pre>{_marked(one['text'] or '', spans)}</pre>"
        if one.get("kept_text"):
            theirs = [(span[2], span[3]) for span in one["spans"] if len(span) == 4]
            text = f"<div class=pair>{text}<pre>{_marked(one['kept_text'], theirs)}</pre></div>"
        parts.append(f"<details><summary>{head}</summary>{text}</details>")
    return "\n".join(parts)


def _marked(text: str, spans: Sequence[tuple[int, int]]) -> str:
    """The text with spans marked, cut to a length that can be read."""
    pieces, at = [], 0
    shown = text[:SHOWN_CHARACTERS]
    for start, end in sorted(spans):
        if start >= len(shown):
            break
        start = max(start, at)
        if end > start:
            pieces += [escape(shown[at:start]), f"<mark>{escape(shown[start:end])}</mark>"]
            at = max(at, min(end, len(shown)))
    pieces.append(escape(shown[at:]))
    return "".join(pieces) + (" …" if len(text) > len(shown) else "")
