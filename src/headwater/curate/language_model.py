"""py3langid's model, asked fast: which languages a few words in any alphabet but CJK may be in.

In: words. Out: a chance for each language. The walk through the model's automaton is compiled once some hundred texts
have been asked about, or cleaning is compiled; the numbers are the same either way, on every machine.

    chances("Heute ist das Wetter sehr schön")     # [("de", 1.0), ...], 0.99
"""

from __future__ import annotations

import math
import unicodedata
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.curate import survey

SHARPNESS = 3
"""Power the model's chances are raised to: it is so cautious with a short text that "Do you have any social value?" is
English by 0.4, Danish by 0.1 and much else by little."""


def _words_of(line: str) -> frozenset[str]:
    return frozenset(line.split())


_COMMON = _words_of(
    "en de fr es ru it pt nl pl sv da no fi cs hu ro bg el tr uk ar fa he hi bn th vi id ms hr sr sk sl lt lv et ca ur "
    "ta te"
)
_RARE_PRIOR = 0.1
"""What a language with few texts on the web is worth beside the others: a few Spanish words are Galician or Aragonese
as well. A sentence that is Galician is far more certain than this takes away."""

_NOT_ASKED = _words_of("zh yue wuu ja ko zxx bcl pcm gcf gcr fuv ext kab lij ltg kik sdh st nso hbo grc uzs")
_COMPILE_AFTER = 200
_LONGEST = 4096  # bytes


@dataclass
class _Model:
    """The model as arrays: `logs` float32 [features, columns] and `base` [columns]; `owner` the language of each
    column; `prior` [languages]; `move`, `row`, `output` the automaton."""

    languages: list[str]
    logs: NDArray[np.float32]
    base: NDArray[np.float64]
    prior: NDArray[np.float64]
    move: NDArray[Any]
    row: NDArray[np.int64]
    output: NDArray[Any]
    owner: NDArray[np.int64]
    weights: NDArray[np.float64]  # of a feature that occurs so often
    seen: NDArray[np.int32]  # working memory of `add_up`, zero between texts
    asked: int = 0


@cache
def _model() -> _Model:
    from py3langid.langid import LanguageIdentifier

    found = LanguageIdentifier.from_model_file("data/model.npz.xz", norm_probs=True)
    found.set_languages([label for label in found.labels if label not in _NOT_ASKED])
    languages = list(found.labels)
    return _Model(
        languages=languages,
        logs=np.ascontiguousarray(found.nb_ptc, np.float32),
        base=np.asarray(found.nb_pc, np.float64),
        prior=np.array([1.0 if language in _COMMON else _RARE_PRIOR for language in languages]),
        move=np.asarray(found.tk_nextmove),
        row=np.asarray(found.tk_row, np.int64) << 8,
        output=np.asarray(found.tk_output),
        owner=np.array([languages.index(label) for label in found.nb_classes]),
        weights=np.log1p(np.arange(_LONGEST + 1, dtype=np.float64)),
        seen=np.zeros(len(found.nb_ptc), np.int32),
    )


def chances(words: str) -> tuple[list[tuple[str, float]], float]:
    """The three likeliest languages with their chances, and how certain the model is of the first."""
    model = _model()
    text = unicodedata.normalize("NFC", words.lower() if words.isupper() else words)
    data = text.encode("utf-8", "surrogatepass")[:_LONGEST]
    sums = _sums(model, data)
    if sums is None:
        return [], 0.0
    raw = model.base + sums
    raw = raw / math.sqrt(len(data))
    likely = np.exp(raw - raw.max())
    likely /= likely.sum()
    cautious = np.bincount(model.owner, weights=likely)  # several columns of one label count together
    sharp = cautious**SHARPNESS * model.prior
    sharp /= sharp.sum()
    best = np.argsort(-sharp, kind="stable")[:3]
    return [(model.languages[index], float(sharp[index])) for index in best], float(cautious[best[0]])


def _sums(model: _Model, data: bytes) -> NDArray[np.float64] | None:
    """What the features of a text say for each column, float64 [columns], summed feature by feature in the order they
    first occur: the same on every machine. None if there are none."""
    model.asked += 1
    hits = np.empty(len(data), np.int64)
    letters = np.frombuffer(data, np.uint8)
    if model.asked > _COMPILE_AFTER or survey.kernels() is not None:
        kernels = _compiled()
        count = kernels.walk(letters, model.move, model.row, model.output, hits)
        sums = np.zeros(model.logs.shape[1])
        kernels.add_up(hits, count, model.weights, model.logs, model.seen, np.empty(count, np.int64), sums)
        return sums if count else None
    count = _plain_walk(letters, model.move, model.row, model.output, hits)
    values, first, counts = np.unique(hits[:count], return_index=True, return_counts=True)
    order = np.argsort(first, kind="stable")
    weighted: NDArray[np.float64] = model.weights[counts[order]][:, None] * model.logs[values[order]]
    return weighted.sum(axis=0) if count else None


def _plain_walk(data: Any, move: Any, row: Any, output: Any, hits: Any) -> int:
    state, count = 0, 0
    for letter in data.tolist():
        state = move[row[state] + letter]
        feature = output[state]
        if feature >= 0:
            hits[count] = feature
            count += 1
    return count


@cache
def _compiled() -> Any:
    from headwater.curate import language_kernels

    return language_kernels
