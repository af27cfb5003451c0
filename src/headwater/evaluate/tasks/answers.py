"""What the model says to a chunk of items, scored: a record for each.

    for record in answer(spec, backend, items, tools): ...

An item that cannot be answered (a continuation longer than the context, a window the model does not have) gets a record
with `failed`, the reason, and counts in no figure; the others of its chunk are scored as ever.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headwater.core.errors import InputError
from headwater.core.units import count_units
from headwater.engine import SamplingParams
from headwater.evaluate.backends import Backend, Written
from headwater.evaluate.sandbox import Sandbox
from headwater.evaluate.tasks.asking import ASKERS
from headwater.evaluate.tasks.code import program_of, score_programs
from headwater.evaluate.tasks.items import Item, render
from headwater.evaluate.tasks.scorers import SCORERS, Metrics, Scored, score_likelihood
from headwater.evaluate.tasks.spec import TaskSpec

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Tools:
    """What scoring needs besides the model: a sandbox for tasks of code and how many programs run in it at once; a
    judge that measures generated texts."""

    sandbox: Sandbox | None = None
    workers: int = 1
    judge: Backend | None = None


def answer(spec: TaskSpec, backend: Backend, items: Sequence[Item], tools: Tools) -> list[Record]:
    """Records of the items, in order."""
    by_kind = {"generate": _generated, "code": _programs, "perplexity": _texts}
    ask = ASKERS.get(spec.scorer) or by_kind.get(spec.kind, _continued)
    try:
        return list(ask(spec, backend, items, tools))
    except InputError as error:
        if len(items) == 1:
            return [_record(items[0], {}, {"failed": error.what})]
    return [record for item in items for record in answer(spec, backend, [item], tools)]


def _continued(spec: TaskSpec, backend: Backend, items: Sequence[Item], tools: Tools) -> Iterator[Record]:
    found = iter(backend.likelihoods([(item.context, choice) for item in items for choice in item.choices]))
    for item in items:
        metrics, kept = score_likelihood(item, [next(found) for _ in item.choices])
        yield _record(item, metrics, kept)


def _texts(spec: TaskSpec, backend: Backend, items: Sequence[Item], tools: Tools) -> Iterator[Record]:
    found = backend.texts([item.context for item in items], window=spec.window, stride=spec.stride)
    for item, likelihood in zip(items, found, strict=True):
        counted = render(spec.counted, item.row) if spec.counted else item.context
        sums = {
            "nats": -likelihood.nats,
            "tokens": likelihood.tokens,
            "whitespace_words": len(re.split(r"\s+", counted)),
            "units": count_units(counted),
            "bytes": len(counted.encode("utf-8", "surrogatepass")),
        }
        yield _record(item, {}, {"sums": sums, "windows": likelihood.windows})


def _write(spec: TaskSpec, backend: Backend, items: Sequence[Item]) -> Sequence[list[str]]:
    drawn = spec.sampling
    params = SamplingParams(
        max_tokens=spec.max_tokens,
        temperature=drawn.temperature,
        top_p=drawn.top_p,
        n=drawn.samples,
        seed=drawn.seed,
        stop=spec.stop,
    )
    return backend.complete([item.context for item in items], params)


def _said(texts: list[str]) -> dict[str, Any]:
    """What is kept of the texts written for an item."""
    kept: dict[str, Any] = {"texts": list(texts), "empty": sum(not text.strip() for text in texts)}
    if isinstance(texts, Written):
        kept["finish"] = list(texts.finish)
        if texts.dropped:
            kept["context_tokens_dropped"] = texts.dropped
    return kept


def _generated(spec: TaskSpec, backend: Backend, items: Sequence[Item], tools: Tools) -> Iterator[Record]:
    for item, texts in zip(items, _write(spec, backend, items), strict=True):
        scored = SCORERS[spec.scorer](item, texts)
        metrics, more = (scored.metrics, scored.kept) if isinstance(scored, Scored) else (scored, {})
        if tools.judge is not None and spec.scorer == "coherence":
            metrics = {**metrics, **_judged(tools.judge, item, texts)}
        yield _record(item, metrics, {**_said(texts), **more})


def _judged(judge: Backend, item: Item, texts: Sequence[str]) -> Metrics:
    """Bits per byte of what was written, after its prompt, by another model; nothing of empty texts."""
    pairs = [(item.context, text) for text in texts if text.strip()]
    found = judge.likelihoods(pairs)
    size = sum(len(text.encode()) for _, text in pairs)
    return {"judge_bits_per_byte": -sum(one.nats for one in found) / size / 0.6931471805599453} if size else {}


def _programs(spec: TaskSpec, backend: Backend, items: Sequence[Item], tools: Tools) -> Iterator[Record]:
    if tools.sandbox is None:
        raise AssertionError("run_task opens a sandbox for tasks of code")
    written = _write(spec, backend, items)
    programs = [[program_of(spec, item, text) for text in texts] for item, texts in zip(items, written, strict=True)]
    outcomes = score_programs(programs, tools.sandbox, tools.workers)
    for item, texts, (metrics, kept) in zip(items, written, outcomes(spec.code.pass_at), strict=True):
        yield _record(item, metrics, {**_said(texts), **kept})


def _record(item: Item, metrics: Mapping[str, float], kept: Mapping[str, Any]) -> Record:
    return {
        "id": item.id,
        "group": item.group,
        "context": item.context,
        "choices": list(item.choices),
        "gold": item.gold,
        "metrics": dict(metrics),
        **kept,
    }
