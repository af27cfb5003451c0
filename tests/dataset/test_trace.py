"""Tracing agrees with what the loader really reads, in both directions."""

import pytest

from headwater.core.errors import InputError
from headwater.dataset import DatasetSplit, Loader, StepOrder, StepSegment, trace_document, trace_step

from .conftest import MakeDataset

STEPS = 40


@pytest.fixture
def split(make_dataset: MakeDataset) -> DatasetSplit:
    return make_dataset(
        {("train", "web"): [[5, 0, 17, 3, 40], [1, 1, 1, 30]], ("train", "law"): [[80, 60], [9]]}
    ).split("train")


@pytest.fixture
def order(split: DatasetSplit) -> StepOrder:
    plain = [StepSegment(1, 6, 8), StepSegment(9, 3, 16, {"web": 2, "law": 1})]
    skipped = StepOrder(split.sizes, seed=4, segments=plain).order.draws_of(range(80, 84))
    segments = [*plain, StepSegment(18, 3, 16, {"law": 1}, skipped), StepSegment(30, 5, 8)]
    return StepOrder(split.sizes, seed=4, segments=segments)


def _read(split: DatasetSplit, order: StepOrder) -> dict[str, set[tuple[int, int, int]]]:
    """By document: (step, sample, token of the document) of every input the loader gives."""
    seen: dict[str, set[tuple[int, int, int]]] = {}
    for batch in Loader(split, order).iterate(1, STEPS):
        for row, ref in enumerate(batch.refs):
            stream = split.domains[ref.domain]
            for column in range(batch.inputs.shape[1]):
                position = ref.start + column
                info = next(i for i, _ in stream.iter_documents() if i.start <= position < i.stop)
                seen.setdefault(info.id, set()).add((batch.step, int(batch.samples[row]), position - info.start))
    return seen


def test_tracing_a_document_finds_exactly_the_steps_that_read_it(split: DatasetSplit, order: StepOrder) -> None:
    seen = _read(split, order)
    for domain, stream in split.domains.items():
        for info, tokens in stream.iter_documents():
            (trace,) = trace_document(split, order, info.id, STEPS)
            assert (trace.domain, trace.tokens, trace.bytes) == (domain, len(tokens), info.bytes)
            found = {
                (reading.step, reading.sample, reading.first + offset)
                for reading in trace.readings
                for offset in range(reading.tokens)
            }
            assert found == seen.get(info.id, set())
            assert trace.unread_tokens == len(tokens) - len({token for _, _, token in found})
            assert trace.steps == tuple(sorted({step for step, _, _ in found}))
            assert trace.as_json()["steps"] == list(trace.steps)


def test_tracing_a_step_names_every_token_of_every_sample(split: DatasetSplit, order: StepOrder) -> None:
    seen = _read(split, order)
    for step in range(1, STEPS + 1):
        trace = trace_step(split, order, step)
        assert [sample.sample for sample in trace.samples] == list(order.range(step))
        for sample in trace.samples:
            assert sum(part.tokens for part in sample.documents) == trace.seq_len
            for part in sample.documents:
                expected = {(step, sample.sample, part.first + offset) for offset in range(part.tokens)}
                assert expected <= seen[part.id]
        assert trace.as_json()["samples"][0]["documents"][0]["lang"] == "zh"


def test_unknown_documents_are_refused(split: DatasetSplit, order: StepOrder) -> None:
    with pytest.raises(InputError, match="no document of the train split"):
        trace_document(split, order, "0" * 32, STEPS)
    with pytest.raises(InputError, match="no document id"):
        trace_document(split, order, "web-17", STEPS)
