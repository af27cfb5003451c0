"""Fitting the filter's classifier, and saying how good the whole is on texts it has not seen.

In: files of harmful and of harmless prompts or texts (fields prompt, text, goal or question). Out: one safetensors file
and a report: precision, recall and false alarms of the lexicon, the classifier and both, on a fifth held out by hash.

    report = fit_filter([Path("advbench_goals.jsonl")], [Path("ordinary.jsonl")], Path("harm.safetensors"))
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headwater.core.errors import InputError, UserError
from headwater.curate.quality.classifier import FitSettings, fit, load
from headwater.evaluate.harm.filter import THRESHOLD, HarmFilter, fold, measure
from headwater.evaluate.tasks.data import read_file

FIELDS = ("prompt", "text", "goal", "question")
HELD_OUT = 0.2
BITS = 16


def read_texts(path: Path) -> list[str]:
    """Texts of a JSON Lines, CSV or text file. InputError for a file without any."""
    texts = []
    for row in read_file(path):
        if isinstance(row, dict):
            text = next((row[name] for name in FIELDS if isinstance(row.get(name), str) and row[name].strip()), None)
            if text is not None:
                texts.append(text)
    if not texts:
        raise InputError(f"no row has a text under {', '.join(FIELDS)}", where=str(path))
    return texts


def fit_filter(
    harmful: Sequence[Path], safe: Sequence[Path], out: Path, *, threshold: float = THRESHOLD, seed: int = 0
) -> dict[str, Any]:
    """Fit on four fifths of every file, measure on the rest. Errors as `read_texts` and the classifier's `fit`."""
    sides: dict[bool, dict[str, list[str]]] = {True: {}, False: {}}
    learned: dict[bool, list[str]] = {True: [], False: []}
    for label, paths in ((True, harmful), (False, safe)):
        if not paths:
            raise UserError("no file of this side is named", where="--harmful" if label else "--safe")
        for path in paths:
            texts = read_texts(path)
            sides[label][path.name] = [text for text in texts if _held_out(text)]
            learned[label] += [fold(text) for text in texts if not _held_out(text)]
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
        "calibration": report["held_out"],
        "held_out": {name: measure(one, bad, good) for name, one in filters.items()},
        "flagged_by_file": {
            name: {one: measure(filter_, texts, [])["recall"] for one, filter_ in filters.items()}
            for files in sides.values()
            for name, texts in files.items()
        },
    }


def _held_out(text: str) -> bool:
    """By the folded text, so that copies stay together."""
    digest = hashlib.sha256(fold(text).encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:4], "big") < HELD_OUT * 2**32
