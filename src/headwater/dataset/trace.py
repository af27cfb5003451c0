"""From a step to its documents and from a document to its steps, by arithmetic: nothing is scanned.

    trace_step(split, order, step=1200)                   # the samples of a step with the documents in them
    trace_document(split, order, document_id, last_step=5000)   # every step that read some of a document

A step reads a document when an input of one of its samples is a token of the document.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from headwater.core.errors import InputError
from headwater.dataset.dataset import DatasetSplit
from headwater.dataset.order import SampleRef
from headwater.dataset.steps import StepOrder


@dataclass(frozen=True, slots=True)
class DocumentPart:
    """`tokens` inputs of a sample are of this document: its tokens `first` to `first + tokens`; `document_tokens`
    with its eos."""

    id: str
    source: str
    lang: str
    first: int
    tokens: int
    document_tokens: int


@dataclass(frozen=True, slots=True)
class SampleTrace:
    """One sample of a step and the documents it reads, in order."""

    sample: int
    domain: str
    epoch: int
    window: int
    documents: tuple[DocumentPart, ...]


@dataclass(frozen=True, slots=True)
class StepTrace:
    """All samples of a step."""

    step: int
    seq_len: int
    samples: tuple[SampleTrace, ...]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Reading:
    """One sample that read `tokens` tokens of a document, its tokens `first` and on."""

    step: int
    sample: int
    epoch: int
    seq_len: int
    window: int
    first: int
    tokens: int


@dataclass(frozen=True, slots=True)
class DocumentTrace:
    """Where a document lies and when it was read. `unread_tokens`: tokens of it that no step read."""

    id: str
    domain: str
    source: str
    lang: str
    tokens: int
    bytes: int
    readings: tuple[Reading, ...]
    unread_tokens: int

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps, sorted."""
        return tuple(sorted({reading.step for reading in self.readings}))

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "steps": list(self.steps)}


def trace_step(split: DatasetSplit, order: StepOrder, step: int) -> StepTrace:
    """The documents of every sample of a step."""
    samples = tuple(
        SampleTrace(ref.sample, ref.domain, ref.epoch, ref.window, _documents(split, ref)) for ref in order.batch(step)
    )
    return StepTrace(step, order.segment(step).seq_len, samples)


def _documents(split: DatasetSplit, ref: SampleRef) -> tuple[DocumentPart, ...]:
    stream = split.stream(ref.domain)
    number = stream.window(ref.start, ref.stop).first_document
    last_input = ref.stop - 1
    parts = []
    position = ref.start
    while position < last_input:
        info = stream.document(number)
        end = min(info.stop, last_input)
        parts.append(
            DocumentPart(info.id, info.source, info.lang, position - info.start, end - position, info.stop - info.start)
        )
        position, number = end, number + 1
    return tuple(parts)


def trace_document(split: DatasetSplit, order: StepOrder, document_id: str, last_step: int) -> list[DocumentTrace]:
    """What steps 1 to `last_step` read of a document; one entry for each document with the id (normally one).

    InputError if no document of the split has the id.
    """
    try:
        if len(bytes.fromhex(document_id)) != 16:
            raise ValueError
    except ValueError:
        raise InputError(
            f"{document_id!r} is no document id", mend="give the 32 hexadecimal digits of the `id` column"
        ) from None
    samples = order.samples_until(last_step)
    traces = []
    for domain, stream in split.domains.items():
        for number in stream.find(document_id):
            info = stream.document(number)
            readings = _readings(order, domain, info.start, info.stop, samples)
            traces.append(
                DocumentTrace(
                    id=info.id,
                    domain=domain,
                    source=info.source,
                    lang=info.lang,
                    tokens=info.stop - info.start,
                    bytes=info.bytes,
                    readings=readings,
                    unread_tokens=_unread(readings, info.stop - info.start),
                )
            )
    if not traces:
        raise InputError(
            f"no document of the {split.name} split has the id {document_id}",
            mend="it may be in another split, or have been removed by curation: see the removed.parquet of the corpus",
        )
    return traces


def _readings(order: StepOrder, domain: str, start: int, stop: int, samples: int) -> tuple[Reading, ...]:
    readings = []
    for seq_len in order.order.lengths():
        for window in range(start // seq_len, (stop - 1) // seq_len + 1):
            first = max(start, window * seq_len)
            tokens = min(stop, (window + 1) * seq_len) - first
            for ref in order.order.samples_of_window(domain, seq_len, window, samples):
                step = order.step_of(ref.sample)
                readings.append(Reading(step, ref.sample, ref.epoch, seq_len, window, first - start, tokens))
    return tuple(sorted(readings, key=lambda reading: (reading.sample, reading.first)))


def _unread(readings: tuple[Reading, ...], tokens: int) -> int:
    read = [False] * tokens
    for reading in readings:
        read[reading.first : reading.first + reading.tokens] = [True] * reading.tokens
    return read.count(False)
