"""Masks: the right share, whole words, and the same whatever reads them."""

from __future__ import annotations

import numpy as np
import pytest

from headwater.core.errors import InputError
from headwater.dataset import Loader, StepOrder, StepSegment, TokenDataset
from headwater.dataset.masking import IGNORE, Masking
from headwater.dataset.objective import MaskedWords
from headwater.dataset.order import SampleRef
from headwater.tokenizer import Tokenizer
from tests.dataset.conftest import MakeDataset
from tests.tokenizer.texts import documents

SEQ = 128


def ref(window: int = 0, epoch: int = 0, domain: str = "web", sample: int = 0) -> SampleRef:
    return SampleRef(sample, domain, 0, epoch, window, SEQ)


@pytest.fixture(scope="module")
def windows(tokenizer: Tokenizer) -> tuple[np.ndarray, np.ndarray]:
    """(tokens, documents) [rows, SEQ] of the texts tokenizers are tested with."""
    tokens: list[int] = []
    numbers: list[int] = []
    for number, document in enumerate(documents()):
        ids = [tokenizer.bos_id, *tokenizer.encode(document.text), tokenizer.eos_id]
        tokens += [token for token in ids if token is not None]
        numbers += [number] * len(ids)
    rows = len(tokens) // SEQ
    assert rows > 20
    return (
        np.array(tokens[: rows * SEQ]).reshape(rows, SEQ),
        np.array(numbers[: rows * SEQ], dtype=np.int32).reshape(rows, SEQ),
    )


def test_15_percent_are_targets_and_80_10_10_of_them_masked_random_kept(
    tokenizer: Tokenizer, windows: tuple[np.ndarray, np.ndarray]
) -> None:
    tokens, numbers = windows
    masking = Masking(tokenizer, seed=1)
    chosen = text = masked = kept = random = 0
    special = np.isin(tokens, sorted(tokenizer.special_ids))
    for epoch in range(40):
        inputs, targets = masking.apply(tokens, numbers, [ref(row, epoch) for row in range(len(tokens))])
        picked = targets != IGNORE
        assert np.array_equal(targets[picked], tokens[picked])
        assert np.array_equal(inputs[~picked], tokens[~picked])
        assert not (picked & special).any()
        assert not (np.isin(inputs, sorted(tokenizer.special_ids - {tokenizer.mask_id})) & picked).any()
        chosen += picked.sum()
        text += (~special).sum()
        masked += (inputs[picked] == tokenizer.mask_id).sum()
        kept += (inputs[picked] == tokens[picked]).sum()
        random += ((inputs[picked] != tokens[picked]) & (inputs[picked] != tokenizer.mask_id)).sum()
    assert chosen / text == pytest.approx(0.15, abs=0.005)
    assert masked / chosen == pytest.approx(0.8, abs=0.01)
    assert random / chosen == pytest.approx(0.1, abs=0.01)
    assert kept / chosen == pytest.approx(0.1, abs=0.01)


def test_words_are_masked_whole(tokenizer: Tokenizer, windows: tuple[np.ndarray, np.ndarray]) -> None:
    tokens, numbers = windows
    masking = Masking(tokenizer, seed=1)
    refs = [ref(row) for row in range(len(tokens))]
    _, targets = masking.apply(tokens, numbers, refs)
    begins = masking._borders.begins(tokens, numbers)
    picked = targets != IGNORE
    inside = ~begins
    inside[:, 0] = False
    assert inside.any()
    assert np.array_equal(picked[:, 1:][inside[:, 1:]], picked[:, :-1][inside[:, 1:]])  # as the token before
    pieces = Masking(tokenizer, seed=1, whole_word=False).apply(tokens, numbers, refs)[1] != IGNORE
    assert not np.array_equal(pieces[:, 1:][inside[:, 1:]], pieces[:, :-1][inside[:, 1:]])


def test_masks_depend_on_seed_window_and_epoch_only(
    tokenizer: Tokenizer, windows: tuple[np.ndarray, np.ndarray]
) -> None:
    tokens, numbers = windows
    masking = Masking(tokenizer, seed=1)
    refs = [ref(row) for row in range(len(tokens))]
    inputs, targets = masking.apply(tokens, numbers, refs)
    for row in (3, 0, 7):  # one by one, in another order, as another sample of the run
        alone = masking.apply(tokens[row : row + 1], numbers[row : row + 1], [ref(row, sample=1000 - row)])
        assert np.array_equal(alone[0][0], inputs[row])
        assert np.array_equal(alone[1][0], targets[row])
    for other in (
        [ref(row, epoch=1) for row in range(len(tokens))],
        [ref(r, domain="law") for r in range(len(tokens))],
    ):
        assert not np.array_equal(masking.apply(tokens, numbers, other)[1], targets)
    assert not np.array_equal(Masking(tokenizer, seed=2).apply(tokens, numbers, refs)[1], targets)


def test_masks_are_those_of_the_first_release(tokenizer: Tokenizer) -> None:
    """A run that is resumed with a newer version must go on with the same masks."""
    masking = Masking(tokenizer, seed=7, whole_word=False)
    tokens = np.full((1, 64), 600)
    _, targets = masking.apply(tokens, np.zeros((1, 64), dtype=np.int32), [SampleRef(5, "web", 5, 2, 11, 64)])
    assert np.flatnonzero(targets[0] != IGNORE).tolist() == FIRST_RELEASE


FIRST_RELEASE = [23, 29, 38, 42, 47, 61]


@pytest.fixture
def dataset(make_dataset: MakeDataset) -> TokenDataset:
    return make_dataset({("train", "web"): [[40, 3, 90, 60], [200]], ("train", "law"): [[150]]})


def test_any_number_of_ranks_and_any_resume_give_the_same_masks(tokenizer: Tokenizer, dataset: TokenDataset) -> None:
    split = dataset.split("train")
    order = StepOrder(split.sizes, seed=3, segments=[StepSegment(1, 6, 16), StepSegment(4, 8, 16)])
    objective = MaskedWords(Masking(tokenizer, seed=3))
    whole = [Loader(split, order, objective=objective).batch(step) for step in range(1, 7)]
    for world in (2, 3, 4):
        loaders = [Loader(split, order, rank=r, world=world, objective=objective, prefetch=3) for r in range(world)]
        for step, parts in enumerate(zip(*(loader.iterate(3, 6) for loader in loaders), strict=True), 3):
            assert np.array_equal(np.concatenate([part.inputs for part in parts]), whole[step - 1].inputs)
            assert np.array_equal(
                np.concatenate([part.counted_targets for part in parts]), whole[step - 1].counted_targets
            )


def test_a_skipped_sample_leaves_the_masks_of_the_others(tokenizer: Tokenizer, dataset: TokenDataset) -> None:
    split = dataset.split("train")
    objective = MaskedWords(Masking(tokenizer, seed=3))

    def by_window(order: StepOrder) -> dict[tuple[str, int, int], bytes]:
        batches = [Loader(split, order, objective=objective).batch(step) for step in range(1, 6)]
        return {
            (ref.domain, ref.window, ref.epoch): batch.inputs[row].tobytes()
            for batch in batches
            for row, ref in enumerate(batch.refs)
        }

    before = by_window(StepOrder(split.sizes, seed=3, segments=[StepSegment(1, 4, 16)]))
    skipped = StepSegment(3, 4, 16, skipped={"web": (9, 10)})
    after = by_window(StepOrder(split.sizes, seed=3, segments=[StepSegment(1, 4, 16), skipped]))
    assert len(before.keys() & after.keys()) >= 10
    assert all(before[key] == after[key] for key in before.keys() & after.keys())


def test_another_epoch_has_other_masks(tokenizer: Tokenizer, dataset: TokenDataset) -> None:
    split = dataset.split("train")
    order = StepOrder(split.sizes, seed=3, segments=[StepSegment(1, 8, 48, {"law": 1})])
    loader = Loader(split, order, objective=MaskedWords(Masking(tokenizer, seed=3)))
    rows: dict[int, dict[int, bytes]] = {}
    for step in range(1, 8):
        batch = loader.batch(step)
        for row, sample in enumerate(batch.refs):
            rows.setdefault(sample.window, {})[sample.epoch] = batch.counted_targets[row].tobytes()
    repeated = [seen for seen in rows.values() if len(seen) > 2]
    assert repeated
    assert all(len(set(seen.values())) == len(seen) for seen in repeated)


def test_a_tokenizer_without_a_mask_token_is_refused(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer, "mask_id", None)
    with pytest.raises(InputError, match="no mask token"):
        Masking(tokenizer, seed=0)
