"""Random state of several ranks: what differs is kept apart, on another layout all take rank 0's."""

from __future__ import annotations

import random

import torch

from headwater.parallel.agreement import Ranks
from headwater.train.rng import seed_everything, set_shared_rng_state, shared_rng_state
from tests.parallel.ranks import run_ranks


def draws() -> tuple[float, float]:
    return random.random(), float(torch.rand(()))


def test_ranks_that_drew_differently_get_their_own_state_back() -> None:
    def work() -> tuple[set[str], bool, tuple[float, float]]:
        ranks = Ranks.new()
        seed_everything(1)
        if ranks.rank == 1:
            draws()
        plain, tensors = shared_rng_state(ranks)
        expected = draws()
        saved = ranks.gather(tensors)
        everyones = {name: tensor for own in saved for name, tensor in own.items()}
        seed_everything(99)
        set_shared_rng_state(plain, everyones, ranks.rank)
        same = draws() == expected
        set_shared_rng_state(plain, everyones, rank=7)  # a rank that was not there when it was saved
        return set(tensors), same, draws()

    (names_0, same_0, as_7_on_0), (names_1, same_1, as_7_on_1) = run_ranks(2, work)
    assert names_0 == {"torch"}
    assert names_1 == {"1.torch", "1.plain"}
    assert same_0
    assert same_1
    assert as_7_on_0 == as_7_on_1


def test_equal_states_are_kept_once() -> None:
    def work() -> set[str]:
        seed_everything(1)
        return set(shared_rng_state(Ranks.new())[1])

    assert run_ranks(2, work) == [{"torch"}, set()]
