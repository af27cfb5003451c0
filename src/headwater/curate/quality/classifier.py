"""A quality classifier that a user fits from texts they want and texts they do not want.

In: positive and negative samples. Out: one safetensors file (weights of hashed n-grams, and how it was made), no
pickle. Its score is a probability: it is calibrated on samples held out from training, on which its AUC is measured
too. The same samples and seed give the same file.

    report = fit(good_texts, bad_texts, Path("quality.safetensors"))
    load(Path("quality.safetensors")).scores(["..."])
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from headwater.core.errors import InputError, UserError
from headwater.core.files import atomic_write
from headwater.core.units import class_table
from headwater.curate.quality.classifier_kernels import score, train

FORMAT, _ENTRY = "headwater-quality-classifier", "headwater"
FORMAT_VERSION = 1
LEAST_SAMPLES = 20
DECIMALS = 4
_PRIOR = 1e-3  # of the calibration's slope, towards 1
_FIRST_SQUARES = 0.01  # of AdaGrad: less, and the first texts decide nearly alone
_SLICE_CHARACTERS = 8 << 20
_MOST_CHARACTERS = 65536  # of one text: more than holds the units that are looked at

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class FitSettings:
    """How a classifier is fitted. `held_out` is the share of samples (by a hash of the text, so copies stay together)
    that it is measured and calibrated on; `decay` the L2 penalty; `bits` the logarithm of the number of weights."""

    bits: int = 18
    epochs: int = 5
    rate: float = 0.5
    decay: float = 1e-6
    held_out: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        for good, name, mend in (
            (8 <= self.bits <= 24, "bits", "give 8 to 24"),
            (1 <= self.epochs <= 100, "epochs", "give 1 to 100"),
            (0 < self.rate <= 10, "rate", "give a number above 0, up to 10"),
            (0 <= self.decay < 1, "decay", "give a number from 0, below 1"),
            (0.05 <= self.held_out <= 0.5, "held_out", "give 0.05 to 0.5"),
        ):
            if not good:
                raise UserError(f"{name} is {getattr(self, name)}", where=f"classifier, {name}", mend=mend)


@dataclass(frozen=True)
class Classifier:
    """A fitted classifier: `weights` float32 [2**bits + 1], the last the bias; `slope` and `shift` of its calibration;
    `report` what `fit` said."""

    bits: int
    weights: NDArray[np.float32]
    slope: float
    shift: float
    report: dict[str, Any]

    def scores(self, texts: Sequence[str]) -> Numbers:
        """Probability that each text is of the positive kind, float64 [texts], fixed to 4 decimals."""
        raw = _raw_scores(texts, self.bits, self.weights)
        return np.round(_sigmoid(self.slope * raw + self.shift), DECIMALS)


def fit(positive: Sequence[str], negative: Sequence[str], out: Path, settings: FitSettings | None = None
        ) -> dict[str, Any]:  # fmt: skip
    """Fit a classifier and write it to `out`. Returns the report: samples, AUC, Brier score and accuracy on held-out
    samples, and the loss of each epoch.

    Raises UserError for too few samples or for texts that stand on both sides.
    """
    settings = settings or FitSettings()
    out.parent.mkdir(parents=True, exist_ok=True)
    texts, labels, both = _samples(positive, negative)
    for name, count in (("positive", int(labels.sum())), ("negative", int((1 - labels).sum()))):
        if count < LEAST_SAMPLES:
            raise UserError(
                f"{count} {name} samples that differ, at least {LEAST_SAMPLES} are needed",
                where="classifier fit",
                mend=f"give more {name} samples; some hundreds are a good beginning",
            )
    draws = [xxhash.xxh3_64_intdigest(text[:4096].encode("utf-8", "surrogatepass")) / 2**64 for text in texts]
    held = np.array(draws) < settings.held_out
    for side in (0, 1):  # small samples: at least a few of each on either side
        mine = np.flatnonzero(labels == side)
        held[mine[:3]], held[mine[3:6]] = True, False
    points, offsets = _points(texts)
    weights = np.zeros((1 << settings.bits) + 1)
    squares = np.full(weights.size, _FIRST_SQUARES)
    importance = np.where(labels == 1, 0.5 / max(labels[~held].mean(), 1e-9), 0.5 / max(1 - labels[~held].mean(), 1e-9))
    random = np.random.Generator(np.random.Philox(settings.seed))
    losses = []
    for epoch in range(settings.epochs):
        order = random.permutation(np.flatnonzero(~held))
        rate = settings.rate / (1 + epoch)
        losses.append(
            train(
                points, offsets, class_table(), settings.bits, labels, importance, order, rate, settings.decay, weights,
                squares,
            )
        )  # fmt: skip
    kept = weights.astype(np.float32)
    raw = _raw_scores([text for text, out_of in zip(texts, held, strict=True) if out_of], settings.bits, kept)
    slope, shift = _calibration(raw, labels[held], importance[held])
    chances = _sigmoid(slope * raw + shift)
    report = {
        "samples": {"positive": int(labels.sum()), "negative": int((1 - labels).sum()), "on_both_sides": both},
        "held_out": {
            "positive": int(labels[held].sum()),
            "negative": int((1 - labels[held]).sum()),
            "auc": round(auc(raw, labels[held]), 4),
            "brier": round(float(np.mean((chances - labels[held]) ** 2)), 4),
            "accuracy": round(float(np.mean((chances >= 0.5) == (labels[held] == 1))), 4),
        },
        "loss": [round(float(loss), 4) for loss in losses],
        "settings": asdict(settings),
    }
    _save(Classifier(settings.bits, kept, slope, shift, report), out)
    return report


def _samples(positive: Sequence[str], negative: Sequence[str]) -> tuple[list[str], NDArray[np.int64], int]:
    """Distinct texts with their labels, sorted, so that their order plays no part; texts of both sides are left out."""
    good, bad = {text for text in positive if text.strip()}, {text for text in negative if text.strip()}
    both = good & bad
    labelled = sorted([(text, 1) for text in good - both] + [(text, 0) for text in bad - both])
    return [text for text, _ in labelled], np.array([label for _, label in labelled], np.int64), len(both)


def _points(texts: Sequence[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Code points of all texts (of each the beginning), uint32, and where each begins, int64 [texts + 1]."""
    cut = [text[:_MOST_CHARACTERS] for text in texts]
    offsets = np.zeros(len(texts) + 1, np.int64)
    np.cumsum([len(text) for text in cut], out=offsets[1:])
    data = "".join(cut).encode("utf-32-le", "surrogatepass")
    return np.frombuffer(bytearray(data) if data else bytearray(4), np.uint32), offsets


def _raw_scores(texts: Sequence[str], bits: int, weights: NDArray[Any]) -> Numbers:
    found = np.empty(len(texts))
    start = 0
    while start < len(texts):
        end, size = start, 0
        while end < len(texts) and (size == 0 or size < _SLICE_CHARACTERS):
            size += min(len(texts[end]), _MOST_CHARACTERS)
            end += 1
        points, offsets = _points(texts[start:end])
        score(
            points, offsets, class_table(), bits, weights[:-1].astype(np.float64), float(weights[-1]), found[start:end]
        )
        start = end
    return found


def _sigmoid(values: Numbers) -> Numbers:
    result: Numbers = 1 / (1 + np.exp(-np.clip(values, -60, 60)))
    return result


def _calibration(raw: Numbers, labels: NDArray[np.int64], importance: Numbers) -> tuple[float, float]:
    """Slope and shift of Platt's scaling (1999), by Newton's method on weighed log-loss with his smoothed targets."""
    count = {side: int((labels == side).sum()) for side in (0, 1)}
    target = np.where(labels == 1, (count[1] + 1) / (count[1] + 2), 1 / (count[0] + 2))

    def loss(slope: float, shift: float) -> float:
        logit = np.clip(slope * raw + shift, -60, 60)
        return float(np.sum(importance * (np.logaddexp(0, logit) - target * logit)) + _PRIOR * (slope - 1) ** 2 / 2)

    slope, shift = 1.0, 0.0
    for _ in range(50):
        chance = _sigmoid(slope * raw + shift)
        error, curve = importance * (chance - target), importance * chance * (1 - chance)
        gradient = np.array([np.sum(error * raw) + _PRIOR * (slope - 1), np.sum(error)])
        mixed = np.sum(curve * raw)
        hessian = np.array([[np.sum(curve * raw * raw) + _PRIOR, mixed], [mixed, np.sum(curve) + 1e-6]])
        step = np.linalg.solve(hessian, gradient)
        length = 1.0  # a whole step may overshoot where the sides lie far apart
        while length > 1e-6 and loss(slope - length * step[0], shift - length * step[1]) > loss(slope, shift):
            length /= 2
        slope, shift = slope - float(length * step[0]), shift - float(length * step[1])
        if np.abs(length * step).max() < 1e-9:
            break
    return max(slope, 1e-3), shift


def auc(scores: Numbers, labels: NDArray[np.int64]) -> float:
    """Probability that a positive sample has the higher score (Mann-Whitney, ties count half)."""
    order = np.argsort(scores, kind="stable")
    ranks = np.empty(len(scores))
    ranks[order] = np.arange(1, len(scores) + 1)
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.bincount(places, weights=ranks) / counts)[places]
    good = int((labels == 1).sum())
    bad = len(labels) - good
    return float((ranks[labels == 1].sum() - good * (good + 1) / 2) / (good * bad)) if good and bad else float("nan")


def _save(found: Classifier, out: Path) -> None:
    from safetensors.numpy import save

    values = {"bits": found.bits, "slope": found.slope, "shift": found.shift, "report": found.report}
    text = json.dumps({"format": FORMAT, "version": FORMAT_VERSION, **values}, sort_keys=True)
    # one entry: safetensors writes several in any order
    atomic_write(out, save({"weights": found.weights}, metadata={_ENTRY: text}))


def load(path: Path) -> Classifier:
    """Read a classifier; a file that has not changed is not read again. Raises InputError for a file that is not there
    or none."""
    try:
        state = path.stat()
    except OSError as error:
        raise InputError(f"cannot read the quality classifier: {error}", where=str(path), mend=_MEND) from error
    return _load(path, (state.st_mtime_ns, state.st_size, state.st_ino))


@lru_cache(maxsize=4)
def _load(path: Path, stamp: tuple[int, int, int]) -> Classifier:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            values = json.loads((file.metadata() or {}).get(_ENTRY, "{}"))
            if (values.get("format"), values.get("version")) != (FORMAT, FORMAT_VERSION):
                raise InputError("this file is no quality classifier of this version", where=str(path), mend=_MEND)
            weights = file.get_tensor("weights")
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise InputError(f"cannot read the quality classifier: {error}", where=str(path), mend=_MEND) from error
    if weights.shape != ((1 << values["bits"]) + 1,) or not np.isfinite(weights).all():
        raise InputError("the classifier's weights are damaged", where=str(path), mend=_MEND)
    return Classifier(values["bits"], weights, values["slope"], values["shift"], values["report"])


_MEND = "make one with `headwater curate classifier fit --positive GOOD --negative BAD --out MODEL`"
