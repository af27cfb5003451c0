"""Fill in the middle: nothing but the named domains, every length kept, all but three tokens still there."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.core.errors import InputError
from headwater.dataset import Loader, StepOrder, StepSegment
from headwater.dataset.fim import SHORTEST, FillInTheMiddle
from headwater.dataset.objective import InfilledMiddles
from headwater.dataset.order import SampleRef
from headwater.tokenizer import Tokenizer
from tests.dataset.conftest import MakeDataset


def ref(window: int = 0, epoch: int = 0, domain: str = "code") -> SampleRef:
    return SampleRef(0, domain, 0, epoch, window, 64)


def row(tokenizer: Tokenizer, sizes: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """One row of documents: bos, distinct tokens of text, eos."""
    tokens, documents = [], []
    for number, size in enumerate(sizes):
        text = [300 + len(tokens) + offset for offset in range(size)]
        tokens += [tokenizer.bos_id, *text, tokenizer.eos_id]
        documents += [number] * (size + 2)
    return np.array([tokens]), np.array([documents], dtype=np.int32)


def undo(part: list[int], fim: FillInTheMiddle) -> list[int]:
    """The text a rearranged document was made of."""
    if part[:2] == [fim.prefix_id, fim.suffix_id]:
        middle = part.index(fim.middle_id)
        return part[middle + 1 :] + part[2:middle]  # prefix and middle are not told apart
    suffix, middle = part.index(fim.suffix_id), part.index(fim.middle_id)
    assert part[0] == fim.prefix_id
    return part[1:suffix] + part[middle + 1 :] + part[suffix + 1 : middle]


@given(sizes=st.lists(st.integers(0, 60), min_size=1, max_size=6), window=st.integers(0, 10**6), spm=st.booleans())
def test_a_rearranged_document_is_the_old_one_without_its_last_three_tokens(
    sizes: list[int], window: int, spm: bool, tokenizer: Tokenizer
) -> None:
    tokens, documents = row(tokenizer, sizes)
    fim = FillInTheMiddle(tokenizer, seed=1, domains=("code",), rate=1.0, spm_rate=float(spm))
    made = fim.apply(tokens, documents, [ref(window)])
    assert made.shape == tokens.shape
    for number, size in enumerate(sizes):
        old = tokens[0][documents[0] == number].tolist()
        new = made[0][documents[0] == number].tolist()
        assert (new[0], new[-1]) == (tokenizer.bos_id, tokenizer.eos_id)
        if new == old:
            continue
        assert size >= SHORTEST
        assert undo(new[1:-1], fim) == old[1:-4]
        assert (new[2] == fim.suffix_id) == spm or new[2] == fim.suffix_id  # an empty prefix looks alike


def test_half_of_the_long_documents_are_rearranged_in_both_orders(tokenizer: Tokenizer) -> None:
    tokens, documents = row(tokenizer, [40] * 5)
    fim = FillInTheMiddle(tokenizer, seed=1, domains=("code",))
    found = Counter()
    for window in range(200):
        made = fim.apply(tokens, documents, [ref(window)])[0]
        for number in range(5):
            part = made[documents[0] == number]
            found["psm" if part[1] == fim.prefix_id and part[2] != fim.suffix_id else ""] += 1
            found["spm"] += int(part[1] == fim.prefix_id and part[2] == fim.suffix_id)
    # Of the half that is chosen, those whose suffix has three tokens: 1 - (about 6 of 41 places).
    assert found["psm"] + found["spm"] == pytest.approx(500 * 0.86, rel=0.1)
    assert found["spm"] / (found["psm"] + found["spm"]) == pytest.approx(0.5, abs=0.08)


def test_other_domains_and_short_documents_stay_as_they_are(tokenizer: Tokenizer) -> None:
    tokens, documents = row(tokenizer, [40, SHORTEST - 1, 0])
    fim = FillInTheMiddle(tokenizer, seed=1, domains=("code",), rate=1.0)
    assert np.array_equal(fim.apply(tokens, documents, [ref(domain="web")]), tokens)
    for window in range(20):
        made = fim.apply(tokens, documents, [ref(window)])
        assert np.array_equal(made[documents > 0], tokens[documents > 0])


def test_the_choice_depends_on_seed_window_and_epoch_only(tokenizer: Tokenizer) -> None:
    tokens, documents = row(tokenizer, [30, 25, 40])
    both = np.concatenate((tokens, tokens)), np.concatenate((documents, documents))
    fim = FillInTheMiddle(tokenizer, seed=1, domains=("code",), rate=1.0)
    made = fim.apply(*both, [ref(3), ref(4)])
    assert np.array_equal(fim.apply(tokens, documents, [ref(4)])[0], made[1])
    assert not np.array_equal(made[0], made[1])
    assert not np.array_equal(fim.apply(tokens, documents, [ref(4, epoch=1)])[0], made[1])
    other = FillInTheMiddle(tokenizer, seed=2, domains=("code",), rate=1.0)
    assert not np.array_equal(other.apply(tokens, documents, [ref(4)])[0], made[1])


def test_a_document_that_goes_on_beyond_the_window_is_rearranged_too(tokenizer: Tokenizer) -> None:
    tokens = np.arange(300, 365)[None]  # neither bos nor eos in sight
    fim = FillInTheMiddle(tokenizer, seed=1, domains=("code",), rate=1.0, spm_rate=0.0)
    made = fim.apply(tokens, np.zeros((1, 65), dtype=np.int32), [ref(1)])[0].tolist()
    assert undo(made, fim) == tokens[0].tolist()[:-3]


def test_any_number_of_ranks_reads_the_same_rows_with_their_borders(
    tokenizer: Tokenizer, make_dataset: MakeDataset
) -> None:
    dataset = make_dataset({("train", "code"): [[40, 30, 90], [200]], ("train", "web"): [[150, 60]]})
    split = dataset.split("train")
    order = StepOrder(split.sizes, seed=3, segments=[StepSegment(1, 6, 32)])
    objective = InfilledMiddles(FillInTheMiddle(tokenizer, seed=3, domains=("code",), rate=1.0))
    plain = [Loader(split, order).batch(step) for step in range(1, 5)]
    whole = [Loader(split, order, objective=objective).batch(step) for step in range(1, 5)]
    changed = 0
    for before, after in zip(plain, whole, strict=True):
        for name in ("documents", "positions", "loss_mask"):
            assert np.array_equal(getattr(before, name), getattr(after, name))
        differs = (before.tokens != after.tokens).any(1)
        assert all(domain == "code" for domain, other in zip(before.domains, differs, strict=True) if other)
        changed += int(differs.sum())
    assert changed > 5
    for world in (2, 3):
        for step in range(1, 5):
            parts = [Loader(split, order, rank=r, world=world, objective=objective).batch(step) for r in range(world)]
            assert np.array_equal(np.concatenate([part.tokens for part in parts]), whole[step - 1].tokens)


def test_a_tokenizer_without_sentinels_is_refused(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(tokenizer), "special_names", ("<s>",))
    with pytest.raises(InputError, match="fill-in-the-middle"):
        FillInTheMiddle(tokenizer, seed=0, domains=("code",))
