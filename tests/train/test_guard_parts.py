"""What detection stands on: sums of weights that show any flipped bit, a watch that says hangs, losses of guesses."""

from __future__ import annotations

import math
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.core.files import atomic_write
from headwater.core.jsonl import pretty_json
from headwater.dataset import TokenDataset
from headwater.dataset.config import DatasetConfig
from headwater.dataset.dataset import INDEX
from headwater.dataset.pack import dataset_index, spec_for
from headwater.dataset.writer import TokenShardWriter
from headwater.diagnose.faults_bits import LAYOUT, flip_bit
from headwater.model import ModelConfig
from headwater.parallel.mesh import Mesh
from headwater.parallel.watchdog import beat
from headwater.tokenizer import Tokenizer
from headwater.train.batch import Batch
from headwater.train.config import TrainConfig
from headwater.train.guesses import guess_losses
from headwater.train.hang_watch import Hang, HangWatch
from headwater.train.train_module import TrainModule
from headwater.train.weight_check import WeightCheck, _words
from tests.train.conftest import TINY, World, documents

CPU = torch.device("cpu")


def step(module: TrainModule, number: int, lr_factor: float = 1.0) -> None:
    tokens = torch.arange(32).view(2, 16) + number
    module.train_step(number, Batch(tokens, tokens), lr_factor=lr_factor)


@pytest.fixture
def module() -> TrainModule:
    model = ModelConfig.model_validate({**TINY, "vocab_size": 128})
    config = TrainConfig(steps=10)
    return TrainModule.build(model, config, mesh=Mesh.single(CPU), precision="fp32", micro_batch=2, seed=0)


@given(st.sampled_from(sorted(LAYOUT, key=str)), st.integers(1, 9), st.integers(0, 3), st.data(), st.integers(0, 2**31))
@settings(max_examples=60)
def test_any_single_bit_changes_the_sum(
    dtype: torch.dtype, size: int, offset: int, data: st.DataObject, seed: int
) -> None:
    tensor = torch.randn(size + offset, generator=torch.Generator().manual_seed(seed)).to(dtype)[offset:]
    before = _words(tensor).sum(dtype=torch.int64)
    element, bit = data.draw(st.integers(0, size - 1)), data.draw(st.integers(0, LAYOUT[dtype][1] - 1))
    flip_bit(tensor, element, bit)
    assert _words(tensor).sum(dtype=torch.int64) != before


def test_a_bit_that_flips_between_updates_is_named_and_an_update_is_not(module: TrainModule) -> None:
    check = WeightCheck(module)
    for number in (1, 2, 3):
        check.compare()
        assert (check.changed, check.moved) == ([], None if number == 1 else True)
        step(module, number)
    name = "model.layers.1.mlp.up_proj.weight"
    flip_bit(module.parameters[name], 7, 0)
    check.compare()
    assert check.changed == [name]
    step(module, 4)
    check.compare()
    assert check.changed == []


def test_an_update_that_moves_nothing_is_seen_and_weights_put_back_are_forgotten(module: TrainModule) -> None:
    check = WeightCheck(module)
    check.compare()
    step(module, 1, lr_factor=0.0)
    check.compare()
    assert check.moved is False
    check.compare()  # no update since: it was held back
    assert check.moved is None
    with torch.no_grad():
        module.parameters["model.norm.weight"].zero_()
    check.forget()
    check.compare()
    assert (check.changed, check.moved) == ([], None)


def test_a_hang_is_said_once_with_its_place_and_stacks(tmp_path: Path) -> None:
    said: list[Hang] = []
    with HangWatch(tmp_path / "logs" / "stacks.txt", seconds=0.2, say=said.append) as watch:
        watch.step(0.01)
        beat(1, "data")
        time.sleep(0.5)
        beat(2, "data")
        time.sleep(0.05)
        assert len(said) == 1
        beat(3, "validation")
        time.sleep(0.5)
    assert [hang.phase for hang in said] == ["data", "validation"]
    assert 0.2 <= said[0].seconds < 0.5
    assert "test_guard_parts.py" in said[0].at
    stacks = (tmp_path / "logs" / "stacks.txt").read_text()
    assert stacks.count("no progress for") == 2
    assert "test_a_hang_is_said_once_with_its_place_and_stacks" in stacks


def test_a_watch_that_cannot_say_its_word_does_not_hold_up_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwater.train.hang_watch.LAST_WORDS_SECONDS", 0.2)
    answers, asked = threading.Event(), threading.Event()  # a disk that does not answer, until the test lets it

    def say(hang: Hang) -> None:
        asked.set()
        answers.wait(60)

    with HangWatch(tmp_path / "stacks.txt", seconds=0.1, say=say):
        beat(1, "data")
        assert asked.wait(10)
        began = time.monotonic()
    assert time.monotonic() - began < 10
    answers.set()


def test_steps_that_always_take_long_are_no_hang(tmp_path: Path) -> None:
    said: list[Hang] = []
    with HangWatch(tmp_path / "stacks.txt", seconds=0.1, say=said.append) as watch:
        for _ in range(3):
            watch.step(0.1)
        assert watch.limit == pytest.approx(1.0)
        beat(1, "forward and backward")
        time.sleep(0.4)
    assert said == []


def test_guesses_cost_what_the_data_says(world: World) -> None:
    split = TokenDataset.open(world.dataset).split("train")
    size = Tokenizer.load(world.tokenizer).vocab_size
    found = guess_losses(split, vocab_size=size, mixture=None)
    assert found.uniform == math.log(size)
    tokens = np.concatenate([stream.window(0, stream.tokens).tokens for stream in split.domains.values()])
    shares = np.bincount(tokens) / len(tokens)
    exact = float(-(shares[shares > 0] * np.log(shares[shares > 0])).sum())
    assert found.unigram == pytest.approx(exact, rel=0.02)
    assert found.unigram < found.uniform
    code = guess_losses(split, vocab_size=size, mixture={"code": 1.0})
    assert code.unigram == pytest.approx(found.unigram, rel=0.05)


def test_guesses_read_a_few_shards_of_many(world: World, tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(world.tokenizer)
    spec, facts, counts = spec_for(DatasetConfig(), tokenizer), [], np.zeros(tokenizer.vocab_size)
    (tmp_path / "train").mkdir()
    for number in range(30):
        name = f"train/web-{number:05d}.tokens"
        with TokenShardWriter(tmp_path / name, spec, split="train", domain="web") as writer:
            for document in documents("web", f"train {number}", 10):
                tokens = tokenizer.encode(document.text)
                writer.add(document, tokens)
                counts += np.bincount(tokens, minlength=len(counts))
        facts.append(("train", "web", {"name": name, **writer.counts}))
    atomic_write(tmp_path / INDEX, pretty_json(dataset_index(spec, facts)))
    split = TokenDataset.open(tmp_path).split("train")
    stream, asked = split.domains["web"], set()

    def read(start: int, stop: int) -> Any:
        asked.update(stream.shard_names(start, stop))
        return type(stream).read(stream, start, stop)

    stream.read = read  # type: ignore[method-assign]
    found = guess_losses(split, vocab_size=len(counts), mixture=None)
    assert sorted(asked) == [f"train/web-{number:05d}.tokens" for number in (3, 11, 18, 26)]
    shares = counts / counts.sum()
    exact = float(-(shares[shares > 0] * np.log(shares[shares > 0])).sum())
    assert found.unigram == pytest.approx(exact, rel=0.05)
