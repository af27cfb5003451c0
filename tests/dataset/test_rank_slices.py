"""Who reads what: collected from the loaders of every rank, for every number of ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.dataset import DatasetSplit, Loader, StepOrder, StepSegment
from headwater.dataset.order import SampleRef
from headwater.dataset.steps import rank_slice
from tests.dataset.conftest import MakeDataset

STEPS = 14
WORLDS = (1, 2, 3, 4, 8)
PLAIN = [StepSegment(1, 8, 8), StepSegment(5, 12, 8, {"web": 3, "law": 1}), StepSegment(9, 9, 16)]
SKIPPING = [
    StepSegment(1, 8, 8),
    StepSegment(3, 8, 8, skipped={"web": (17, 18, 20), "law": (9,)}),
    StepSegment(7, 11, 8, {"web": 1}, skipped={"web": (60, 61)}),
    StepSegment(11, 8, 16, {"law": 1, "web": 1}, skipped={"law": (1,)}),
]


@pytest.fixture
def split(make_dataset: MakeDataset) -> DatasetSplit:
    return make_dataset({("train", "web"): [[300, 0, 200], [90] * 6], ("train", "law"): [[500], [1, 1, 400]]}).split(
        "train"
    )


def collected(split: DatasetSplit, order: StepOrder, world: int, first: int, last: int) -> list[list[SampleRef]]:
    """For each step, what all ranks read, in the order of the ranks."""
    loaders = [Loader(split, order, rank=rank, world=world, prefetch=3) for rank in range(world)]
    steps = []
    for batches in zip(*(loader.iterate(first, last) for loader in loaders), strict=True):
        refs = [ref for batch in batches for ref in batch.refs]
        for batch in batches:
            for row, ref in enumerate(batch.refs):
                expected = split.domains[ref.domain].read(ref.start, ref.stop)
                assert np.array_equal(batch.tokens[row], expected)  # the row is the sample it says it is
        steps.append(refs)
    return steps


@pytest.mark.parametrize("segments", [PLAIN, SKIPPING], ids=["plain", "skipping"])
def test_every_number_of_ranks_reads_every_sample_once_and_in_the_same_order(
    segments: list[StepSegment], split: DatasetSplit
) -> None:
    order = StepOrder(split.sizes, seed=5, segments=segments)
    alone = collected(split, order, 1, 1, STEPS)
    ids = [ref.sample for step in alone for ref in step]
    assert ids == list(range(order.samples_until(STEPS)))  # none twice, none left out
    draws = [(ref.domain, ref.seq_len, ref.draw) for step in alone for ref in step]
    assert len(set(draws)) == len(draws)
    for world in WORLDS[1:]:
        assert collected(split, order, world, 1, STEPS) == alone


@pytest.mark.parametrize("segments", [PLAIN, SKIPPING], ids=["plain", "skipping"])
def test_a_run_that_changes_its_number_of_ranks_goes_on_in_the_same_order(
    segments: list[StepSegment], split: DatasetSplit
) -> None:
    order = StepOrder(split.sizes, seed=5, segments=segments)
    alone = collected(split, order, 1, 1, STEPS)
    changing: list[list[SampleRef]] = []
    for world, first, last in ((1, 1, 2), (4, 3, 5), (2, 6, 6), (8, 7, 10), (3, 11, STEPS)):
        changing += collected(split, order, world, first, last)
    assert changing == alone


def test_skipped_samples_are_read_by_nobody_and_the_rest_moves_up(split: DatasetSplit) -> None:
    order = StepOrder(split.sizes, seed=5, segments=SKIPPING)
    for world in WORLDS:
        read = {
            (ref.domain, ref.draw) for step in collected(split, order, world, 3, 10) for ref in step if ref.seq_len == 8
        }
        assert not read & {("web", 17), ("web", 18), ("web", 20), ("law", 9), ("web", 60), ("web", 61)}
        webs = sorted(draw for domain, draw in read if domain == "web")
        missing = set(range(webs[0], webs[-1] + 1)) - set(webs)
        assert missing <= {17, 18, 20, 60, 61}


@given(start=st.integers(0, 10**12), size=st.integers(0, 5000), world=st.integers(1, 700))
def test_slices_make_up_the_batch_and_differ_by_one_at_most(start: int, size: int, world: int) -> None:
    batch = range(start, start + size)
    slices = [rank_slice(batch, rank, world) for rank in range(world)]
    assert [sample for part in slices for sample in part] == list(batch)
    assert max(map(len, slices)) - min(map(len, slices)) <= 1
