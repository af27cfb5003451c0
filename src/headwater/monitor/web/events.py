"""What happened to a run, in one list: its own events, what detectors said, what was done about it.

In: lines of `events.jsonl` and `ledger.jsonl`, of any make. Out: `{kind, level, step, time, title, text}`, oldest
first. Levels: `critical`, `warning`, `action` (somebody or something intervened), `info`.

    happenings([{"event": "resumed", "step": 3, "time": 1.0}], [])[0]["title"]      # "resumed"
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headwater.monitor.web.columns import LARGEST

QUIET = ("checkpoint", "device")
"""Too many, or nothing to see in a curve."""

LEVELS = {"warning": "warning", "interrupted": "warning", "rewound": "action", "stopped": "critical"}

BOOKKEEPING = frozenset({"time", "event", "step", "message", "detector", "severity", "evidence", "parallel"})
LONGEST_TEXT = 1200


def happenings(events: Iterable[Mapping[str, Any]], ledger: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Both in one list; the entries that a recovery made stand in its event, the others for themselves."""
    entries = list(ledger)
    undone = _undone(entries)
    texts = {}
    for entry in entries:
        item = _entry(entry)
        if item is not None:
            item["text"] += "\nundone by a later rewind" if _number_of(entry) in undone else ""
            texts[_number_of(entry)] = item
    found = []
    for event in events:
        if event.get("event") in QUIET:
            continue
        item = _event(event)
        made = event.get("entries")
        if event.get("event") == "recovery" and isinstance(made, list):
            own = [texts.pop(at) for at in made if isinstance(at, int) and at in texts]
            item["text"] = _shorten("\n".join([item["text"], *(f"{one['title']}: {one['text']}" for one in own)]))
        found.append(item)
    return found + list(texts.values())


def _number_of(entry: Mapping[str, Any]) -> object:
    """An entry's number, or the entry's own identity where it has none."""
    at = entry.get("number")
    return at if isinstance(at, int) else id(entry)


def _undone(entries: Sequence[Mapping[str, Any]]) -> set[object]:
    """Entries recorded, and updates held back, after the step that a later rewind went back to."""
    gone: set[object] = set()
    for place, entry in enumerate(entries):
        data = entry.get("data")
        to = number(data.get("to")) if entry.get("kind") == "rewind" and isinstance(data, Mapping) else None
        if to is not None:
            for one in entries[:place]:
                after = "step" if one.get("kind") == "hold" else "at"
                if (number(one.get(after)) or 0) > to:
                    gone.add(_number_of(one))
    return gone


def _event(event: Mapping[str, Any]) -> dict[str, Any]:
    kind = _text(event.get("event") or "event")
    if kind == "alert":
        level = "critical" if event.get("severity") == "critical" else "warning"
        title = _text(event.get("detector") or "alert").replace("_", " ")
        evidence = event.get("evidence")
        text = _text(event.get("message") or "")
        if isinstance(evidence, Mapping) and evidence:
            text += f"\n{_facts(evidence)}"
    elif kind == "recovery":
        level, title = "action", f"recovery: {_text(event.get('action')).replace('_', ' ')}"
        to, samples = number(event.get("to")), number(event.get("samples"))
        parts = [f"because of {_value(event.get('why'))}", to is not None and f"back to step {to:,.0f}",
                 samples and f"without {samples:,.0f} samples"]  # fmt: skip
        text = ", ".join(str(part) for part in parts if part)
    else:
        level = LEVELS.get(kind, "info")
        title = kind.replace("_", " ")
        rest = {key: value for key, value in event.items() if key not in BOOKKEEPING}
        text = "\n".join(part for part in (_text(event.get("message") or ""), _facts(rest)) if part)
    return _item(kind, level, number(event.get("step")), number(event.get("time")), title, text)


def _entry(entry: Mapping[str, Any]) -> dict[str, Any] | None:
    kind, step, data = entry.get("kind"), number(entry.get("step")), entry.get("data")
    data = data if isinstance(data, Mapping) else {}
    if kind == "skip":
        draws = data.get("draws")
        count = len(draws) if isinstance(draws, list) else 0
        title, text = "samples skipped", f"{count:,} samples of {_text(data.get('domain'))} are left out"
    elif kind == "lr":
        title, text = "learning rate", f"times {_value(data.get('factor'))} until step {_value(data.get('until'))}"
    elif kind == "hold":
        title, text = "update held back", f"because of {_value(data.get('why'))}"
    elif kind == "rewind":
        title, text = "rewind", f"went back to step {_value(data.get('to'))}"
    elif kind == "order" and entry.get("at"):
        title, text = "data order", _facts(data)
    elif kind == "dataset" and entry.get("at"):
        title, text = "dataset", _facts(data)
    else:  # what a run begins with
        return None
    at = number(entry.get("at"))
    note = f"\ndecided after step {at:,.0f}" if at else ""
    return _item(f"ledger-{kind}", "action", step, None, title, text + note)


def _item(kind: str, level: str, step: float | None, time: float | None, title: str, text: str) -> dict[str, Any]:
    return {"kind": kind, "level": level, "step": step, "time": time, "title": title[:120], "text": _shorten(text)}


def number(value: Any) -> float | None:
    """A finite number that a float can hold, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < LARGEST:
        return None
    return value


def _facts(facts: Mapping[str, Any]) -> str:
    return ", ".join(f"{_text(key).replace('_', ' ')} {_value(value)}" for key, value in facts.items())


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, Mapping):
        return f"({_facts(value)})"
    if isinstance(value, list):
        return ", ".join(map(_value, value[:12])) + (f" and {len(value) - 12} more" if len(value) > 12 else "")
    return _text(value)


def _text(value: Any) -> str:
    return str("none" if value is None else value)


def _shorten(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]} …"
