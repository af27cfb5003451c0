"""Batches: right masks and positions, the same for any number of ranks, and a thread that always ends."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.core.errors import CorruptArtifactError
from headwater.dataset import Batch, DatasetSplit, Loader, StepOrder, StepSegment
from headwater.dataset.loader import positions_of

from .conftest import MakeDataset

LENGTHS = [[5, 0, 17, 3, 40], [1, 1, 1, 30]]


@pytest.fixture
def split(make_dataset: MakeDataset) -> DatasetSplit:
    return make_dataset({("train", "web"): LENGTHS, ("train", "law"): [[80, 60]]}).split("train")


def _order(split: DatasetSplit) -> StepOrder:
    segments = [StepSegment(1, 6, 8), StepSegment(5, 9, 8, {"web": 1}), StepSegment(8, 4, 16)]
    return StepOrder(split.sizes, seed=4, segments=segments)


def _same(one: Batch, two: Batch) -> bool:
    names = ("tokens", "documents", "positions", "loss_mask", "samples")
    return all(np.array_equal(getattr(one, name), getattr(two, name)) for name in names) and one.refs == two.refs


def test_rows_are_the_windows_of_their_samples(split: DatasetSplit) -> None:
    order = _order(split)
    batch = Loader(split, order).batch(2)
    assert batch.tokens.shape == (6, 9)
    assert batch.inputs.shape == batch.targets.shape == batch.positions.shape == batch.loss_mask.shape == (6, 8)
    assert (batch.tokens.dtype, batch.documents.dtype, batch.positions.dtype) == (np.int64, np.int32, np.int32)
    assert batch.samples.tolist() == list(range(6, 12))
    for row, ref in enumerate(order.batch(2)):
        assert batch.tokens[row].tolist() == split.domains[ref.domain].read(ref.start, ref.stop).tolist()
        assert batch.domains[row] == ref.domain
        assert batch.inputs[row, 1:].tolist() == batch.targets[row, :-1].tolist()


def test_no_target_is_predicted_across_a_documents_border(split: DatasetSplit) -> None:
    loader = Loader(split, _order(split))
    for step in range(1, 8):
        batch = loader.batch(step)
        for row in range(len(batch.refs)):
            position = 0
            for column in range(batch.inputs.shape[1]):
                ended = batch.inputs[row, column] == 2  # eos: the target is the next document's first token
                assert batch.loss_mask[row, column] != ended
                assert batch.positions[row, column] == position
                position = 0 if ended else position + 1
        assert batch.valid_tokens == batch.loss_mask.sum()


@given(st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=4))
@settings(max_examples=50)
def test_positions_restart_with_every_document_or_only_with_every_row(borders: list[list[bool]]) -> None:
    documents = np.cumsum(np.array(borders), axis=1).astype(np.int32)
    restarted = positions_of(documents)
    for row, ordinals in enumerate(documents.tolist()):
        expected = [ordinals[: column + 1].count(ordinal) - 1 for column, ordinal in enumerate(ordinals)]
        assert restarted[row].tolist() == expected
    assert positions_of(documents, restart=False).tolist() == [list(range(6))] * len(borders)


@pytest.mark.parametrize("world", [1, 2, 3, 7])
def test_a_batch_does_not_depend_on_the_number_of_ranks(split: DatasetSplit, world: int) -> None:
    order = _order(split)
    for step in (1, 4, 5, 8):
        whole = Loader(split, order).batch(step)
        parts = [Loader(split, order, rank=rank, world=world).batch(step) for rank in range(world)]
        assert np.array_equal(np.concatenate([part.tokens for part in parts]), whole.tokens)
        assert np.array_equal(np.concatenate([part.documents for part in parts]), whole.documents)
        assert [ref for part in parts for ref in part.refs] == list(whole.refs)


@pytest.mark.parametrize("prefetch", [1, 3, 50])
def test_reading_ahead_and_starting_anywhere_gives_the_same_batches(split: DatasetSplit, prefetch: int) -> None:
    order = _order(split)
    direct = [Loader(split, order).batch(step) for step in range(1, 11)]
    ahead = list(Loader(split, order, prefetch=prefetch).iterate(1, 10))
    assert [batch.step for batch in ahead] == list(range(1, 11))
    assert all(_same(one, two) for one, two in zip(direct, ahead, strict=True))
    resumed = list(Loader(split, order, prefetch=prefetch).iterate(6, 10))
    assert all(_same(one, two) for one, two in zip(direct[5:], resumed, strict=True))
    assert list(Loader(split, order).iterate(5, 4)) == []


def _threads() -> int:
    return sum(thread.name == "headwater-loader" for thread in threading.enumerate())


def test_leaving_early_ends_the_thread(split: DatasetSplit) -> None:
    for batch in Loader(split, _order(split), prefetch=1).iterate(1, 10_000):
        if batch.step == 3:
            break
    iterator = Loader(split, _order(split)).iterate(1, 10_000)
    next(iterator)
    iterator.close()  # type: ignore[attr-defined]
    assert _threads() == 0


def test_damage_found_while_reading_ahead_is_raised_at_its_step(make_dataset: MakeDataset) -> None:
    split = make_dataset({("train", "web"): [[100_000]]}).split("train")
    path = split.stream("web")._dataset.path / "train" / "web-00000.tokens"
    data = bytearray(path.read_bytes())
    data[128 + 2 * 65_536 + 5] ^= 1  # the third block
    path.write_bytes(data)
    order = StepOrder(split.sizes, seed=1, segments=[StepSegment(1, 1, 64)])
    bad = next(s for s in range(1, 2000) if order.batch(s)[0].stop > 65_536 and order.batch(s)[0].start < 98_304)
    seen: list[int] = []
    with pytest.raises(CorruptArtifactError, match="block 2 of 4"):
        seen.extend(batch.step for batch in Loader(split, order, prefetch=8).iterate(1, 2000))
    assert seen == list(range(1, bad))
    assert _threads() == 0


def test_a_rank_outside_the_world_is_refused(split: DatasetSplit) -> None:
    with pytest.raises(ValueError, match="outside a world"):
        Loader(split, _order(split), rank=2, world=2)
    with pytest.raises(ValueError, match="prefetch"):
        Loader(split, _order(split), prefetch=0)
