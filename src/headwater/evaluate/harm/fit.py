"""Fitting the filter's classifier, and saying how good the whole is on texts it has not seen.

In: files of harmful and of harmless prompts or texts (fields prompt, text, goal or question). Out: one safetensors file
and a report: precision, recall and false alarms of the lexicon, the classifier and both, on a fifth held out by hash.

    report = fit_filter([Path("advbench_goals.jsonl")], [Path("ordinary.jsonl")], Path("harm.safetensors"))
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwater.core.errors import InputError, UserError
from headwater.curate.quality.classifier import FitSettings, fit, load
from headwater.evaluate.harm.filter import THRESHOLD, HarmFilter, fold, measure
from headwater.evaluate.tasks.data import Malformed, read_numbered

FIELDS = ("prompt", "text", "goal", "question")
HELD_OUT = 0.2
BITS = 16
SHOWN = 10
"""Numbers of rows that are listed for people."""


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts of a file with their numbers from 1 (lines of JSON Lines, rows of other files), and the numbers of rows
    without one by reason: `not-json`, `not-an-object`, `no-text`."""

    rows: list[int]
    texts: list[str]
    set_aside: dict[str, list[int]]


def read_texts(path: Path) -> Texts:
    """Texts of a JSON Lines, CSV or text file. InputError for a file without any."""
    found = Texts([], [], {})
    for number, row in read_numbered(path):
        if isinstance(row, dict):
            text = next((row[name] for name in FIELDS if isinstance(row.get(name), str) and row[name].strip()), None)
            if text is not None:
                found.rows.append(number)
                found.texts.append(text)
                continue
            reason = "no-text"
        else:
            reason = "not-json" if isinstance(row, Malformed) else "not-an-object"
        found.set_aside.setdefault(reason, []).append(number)
    if not found.texts:
        raise InputError(f"no row has a text under {', '.join(FIELDS)}", where=str(path))
    return found


def set_aside_line(path: str, set_aside: Mapping[str, Sequence[int]]) -> str:
    """What of a file was not looked at, for people; "" if all was."""
    parts = []
    for reason, rows in set_aside.items():
        more = f" and {len(rows) - SHOWN:,} more" if len(rows) > SHOWN else ""
        parts.append(f"{len(rows):,} {reason} (row {', '.join(map(str, rows[:SHOWN]))}{more})")
    return f"{path}: not looked at: {'; '.join(parts)}" if parts else ""


def fit_filter(
    harmful: Sequence[Path], safe: Sequence[Path], out: Path, *, threshold: float = THRESHOLD, seed: int = 0
) -> dict[str, Any]:
    """Fit on four fifths of every file, measure on the rest. Errors as `read_texts` and the classifier's `fit`."""
    sides: dict[bool, dict[str, list[str]]] = {True: {}, False: {}}
    learned: dict[bool, list[str]] = {True: [], False: []}
    set_aside: dict[str, dict[str, list[int]]] = {}
    names = _names([*harmful, *safe])
    for label, paths in ((True, harmful), (False, safe)):
        if not paths:
            raise UserError("no file of this side is named", where="--harmful" if label else "--safe")
        for path in paths:
            found = read_texts(path)
            sides[label][names[path]] = [text for text in found.texts if _held_out(text)]
            learned[label] += [fold(text) for text in found.texts if not _held_out(text)]
            set_aside[names[path]] = found.set_aside
    report = fit(learned[True], learned[False], out, FitSettings(bits=BITS, seed=seed))
    classifier = load(out)
    filters = {
        "lexicon": HarmFilter(),
        "classifier": HarmFilter(classifier, threshold, lexicon=False),
        "both": HarmFilter(classifier, threshold),
    }
    bad, good = ([text for texts in sides[label].values() for text in texts] for label in (True, False))
    return {
        "file": str(out),
        "threshold": threshold,
        "fitted_on": {"harmful": len(learned[True]), "safe": len(learned[False])},
        "set_aside": {name: rows for name, rows in set_aside.items() if rows},
        "calibration": report["held_out"],
        "held_out": {name: measure(one, bad, good) for name, one in filters.items()},
        "flagged_by_file": {
            name: {one: measure(filter_, texts, [])["recall"] for one, filter_ in filters.items()}
            for files in sides.values()
            for name, texts in files.items()
        },
    }


def _names(paths: Sequence[Path]) -> dict[Path, str]:
    """What files are called in the report: by their names, where no two have the same. UserError for a file that is
    named twice: it would be learned and measured twice, or on both sides."""
    seen: set[Path] = set()
    for path in paths:
        if path.resolve() in seen:
            raise UserError("this file is named twice", where=str(path), mend="name it once, on one side")
        seen.add(path.resolve())
    alike = Counter(path.name for path in paths)
    return {path: path.name if alike[path.name] == 1 else str(path) for path in paths}


def _held_out(text: str) -> bool:
    """By the folded text, so that copies stay together."""
    digest = hashlib.sha256(fold(text).encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:4], "big") < HELD_OUT * 2**32
