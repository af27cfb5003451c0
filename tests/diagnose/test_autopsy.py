"""Whose fault a step was: real runs with a fault in the data, in the weights, in the arithmetic, and none."""

from __future__ import annotations

import math
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headwater.core.documents import Document
from headwater.core.files import atomic_write
from headwater.core.jsonl import pretty_json
from headwater.dataset import StepOrder, TokenDataset
from headwater.dataset.config import DatasetConfig
from headwater.dataset.dataset import INDEX
from headwater.dataset.pack import dataset_index, spec_for
from headwater.dataset.writer import TokenShardWriter
from headwater.diagnose.autopsy import Measured, autopsy_of, autopsy_text, shares, visible
from headwater.diagnose.replaying import recorded, replay_step
from headwater.monitor import MetricsRecord
from headwater.tokenizer import Tokenizer
from headwater.train import RunFolder
from headwater.train.callbacks import Callback
from headwater.train.ledger import RunLedger
from headwater.train.trainer import Trainer
from tests.cli.conftest import call
from tests.train.conftest import World, world
from tests.train.test_detection import run_of

__all__ = ["call", "world"]

WRONG = 45


def copy_with(source: Path, target: Path, tokenizer: Tokenizer, noise: set[tuple[str, int]]) -> tuple[Path, set[str]]:
    """The dataset with noise in some windows of 32 tokens, of the same size, so that its order is the same; and the
    ids of the documents that are hit."""
    rng, spec, facts, hit = random.Random(1), spec_for(DatasetConfig(), tokenizer), [], set()
    dataset = TokenDataset.open(source)
    for split in dataset.splits:
        (target / split).mkdir(parents=True)
        for domain, stream in dataset.split(split).domains.items():
            tokens = stream.window(0, stream.tokens).tokens.astype(np.int64)
            bad = np.zeros(len(tokens), dtype=bool)
            if split == "train":
                for window in (w for name, w in noise if name == domain):
                    bad[window * 32 : window * 32 + 33] = True
            name = f"{split}/{domain}-00000.tokens"
            with TokenShardWriter(target / name, spec, split=split, domain=domain) as writer:
                for number in range(stream.documents):
                    info = stream.document(number)
                    ids = [int(t) for t in tokens[info.start + 1 : info.stop - 1]]
                    for place, position in enumerate(range(info.start + 1, info.stop - 1)):
                        if bad[position]:
                            ids[place] = rng.randrange(40, 500)
                            hit.add(info.id)
                    document = Document(id=info.id, text="x" * info.bytes, source=info.source, domain=domain)
                    writer.add(document, ids)
            facts.append((split, domain, {"name": name, **writer.counts}))
    atomic_write(target / INDEX, pretty_json(dataset_index(spec, facts)))
    return target, hit


@pytest.fixture(scope="module")
def poisoned(world: World, tmp_path_factory: pytest.TempPathFactory) -> tuple[World, set[str]]:
    """A world whose step WRONG reads noise in five of eight samples."""
    sizes = TokenDataset.open(world.dataset).split("train").sizes
    healthy = run_of(world, tmp_path_factory.mktemp("autopsy") / "healthy", steps=6)
    order = StepOrder(sizes, seed=0, segments=healthy.ledger().step_segments())
    noise = {(ref.domain, ref.window) for ref in order.batch(WRONG)[:5]}
    target = tmp_path_factory.mktemp("poisoned") / "dataset"
    dataset, hit = copy_with(world.dataset, target, Tokenizer.load(world.tokenizer), noise)
    assert TokenDataset.open(dataset).split("train").sizes == sizes
    return replace(world, dataset=dataset), hit


class TooFast(Callback):
    """The learning rate of two steps is far too high, by an entry of the ledger."""

    name = "too_fast"

    def before_step(self, trainer: Trainer, step: int) -> None:
        if step == WRONG - 3:
            trainer.ledger.append("lr", step=step, at=step - 1, data={"factor": 20_000.0, "until": step + 1})


class FlippedBit(Callback):
    """A bit of one weight's exponent changes before a step, which nobody records."""

    name = "flipped"

    def before_step(self, trainer: Trainer, step: int) -> None:
        if step == WRONG - 2:
            with torch.no_grad():
                weight = trainer.module.parameters["model.norm.weight"]
                weight[7:8].view(torch.int32).bitwise_xor_(1 << 29)


def test_noise_in_the_data_is_the_datas_fault_and_its_documents_come_first(
    poisoned: tuple[World, set[str]], tmp_path: Path, call: Any
) -> None:
    place, hit = poisoned
    run_of(place, tmp_path / "run", steps=50)
    told = call("doctor", "run", "--step", str(WRONG), "--dataset", str(place.dataset), "--json", code=1, cwd=tmp_path)
    assert told.json["cause"] == "data"
    assert told.json["reproduced"] == "bitwise", told.json["why"]
    assert told.json["checkpoint"] == 40
    documents = told.json["documents"]
    worst = {document["id"] for document in documents[:3]}
    assert worst <= hit
    assert documents[0]["loss"] > 5
    assert math.isclose(sum(document["loss_share"] for document in documents), 1, rel_tol=1e-6)
    assert math.isclose(sum(document["gradient_share"] for document in documents), 1, rel_tol=1e-6)
    text = call("doctor", "run", "--step", str(WRONG), "--dataset", str(place.dataset), code=1, cwd=tmp_path).stdout
    assert "it was the data: the batch is bad under other weights too" in text
    assert f"  {documents[0]['id']}  loss" in text
    assert "bit for bit" in text


def test_a_healthy_step_is_nobodys_fault(world: World, tmp_path: Path, call: Any) -> None:
    run_of(world, tmp_path / "run", steps=50)
    at = ("doctor", "run", "--dataset", str(world.dataset), "--step")
    told = call(*at, "47", cwd=tmp_path)
    assert "it was nothing: the step is not worse than others" in told.stdout
    early = call(*at, "2", "--json", cwd=tmp_path).json  # before the first checkpoint
    assert early["checkpoint"] == 0
    assert early["reproduced"] == "bitwise"
    assert "outside this run" in call(*at, "51", code=2, cwd=tmp_path).stderr
    elsewhere = call("doctor", "run", "--step", "47", code=2, cwd=tmp_path).stderr
    assert "is not in the workspace around it" in elsewhere
    assert "--dataset" in elsewhere
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    refused = call(*at, "47", "--max-replay", "20", code=2, cwd=tmp_path).stderr
    assert "the nearest checkpoint before step 47 is 46 steps before it" in refused
    alone = call("doctor", "run", "--max-replay", "20", code=2, cwd=tmp_path).stderr
    assert "--max-replay goes with --step" in alone
    replayed = call(*at, "47", "--json", cwd=tmp_path).json
    assert replayed["reproduced"] == "bitwise"
    assert any("no checkpoint" in note for note in replayed["notes"])


def test_a_step_just_before_a_phase_with_another_rotary_base_is_done_with_its_own(world: World, tmp_path: Path) -> None:
    """The batches it is compared with are of the next phase."""
    phases = [{"name": "short", "share": 0.8}, {"name": "long", "share": 0.2, "rope_theta": 1e6}]
    kept = {"every": 10, "permanent_every": 10}
    run = run_of(world, tmp_path / "run", steps=50, phases=phases, checkpoint=kept)
    dataset = TokenDataset.open(world.dataset)
    assert [autopsy_of(replay_step(run, step, dataset)).reproduced for step in (38, 42)] == ["bitwise", "bitwise"]


def test_weights_gone_wrong_are_the_states_fault(world: World, tmp_path: Path) -> None:
    run = run_of(world, tmp_path / "run", TooFast(), steps=50)
    found = autopsy_of(replay_step(run, WRONG, TokenDataset.open(world.dataset)))
    assert (found.cause, found.reproduced) == ("state", "bitwise")


def test_a_flipped_bit_is_the_hardwares_fault(world: World, tmp_path: Path) -> None:
    run = run_of(world, tmp_path / "run", FlippedBit(), steps=50)
    found = autopsy_of(replay_step(run, WRONG, TokenDataset.open(world.dataset)))
    assert (found.cause, found.reproduced) == ("hardware", "no")
    assert "not the recorded loss" in autopsy_text(found)


def test_a_step_that_was_undone_is_looked_at_as_it_was(poisoned: tuple[World, set[str]], tmp_path: Path) -> None:
    place, hit = poisoned
    policy = {"skip": {"times": 0}}
    run = run_of(place, tmp_path / "run", steps=50, recovery=policy)
    assert [entry.data["to"] for entry in run.ledger().rewinds()] == [40]
    before = run.ledger_path.read_bytes()
    found = autopsy_of(replay_step(run, WRONG, TokenDataset.open(place.dataset)))
    assert found.measured.undone
    assert (found.cause, found.reproduced) == ("data", "bitwise")
    assert found.measured.documents[0].id in hit
    assert run.ledger_path.read_bytes() == before


def test_of_a_step_that_was_undone_nothing_counts_that_was_recorded_the_next_time(tmp_path: Path) -> None:
    """The event of a rewind keeps the first of many undone steps, and a kill can leave it out."""
    folder = tmp_path / "run"
    ledger = RunLedger(folder / "ledger.jsonl")
    ledger.append("rewind", step=641, at=640, data={"to": 400, "why": ["loss_spike"], "onset": 402})
    ledger.append("rewind", step=650, at=649, data={"to": 600, "why": ["loss_spike"], "onset": 645})
    (folder / "run.json").write_text('{"steps": 900}')
    with MetricsRecord(folder / "metrics.jsonl") as record:
        for step in range(1, 700):
            record.append({"step": step, "loss": 3.0 if step <= 400 else 2.0, "grad_norm": 1.0})
    run = RunFolder.open(folder)
    assert recorded(run, 641) == (None, None, ())
    run.event("recovery", step=641, entries=[0], loss=9.0, grad_norm=math.inf)
    run.event("rewound", step=640, to=400, undone=[{"step": s, "loss": 4.0, "grad_norm": 2.0} for s in range(401, 601)])
    run.event("recovery", step=641, entries=[1], loss=8.0, grad_norm=8.0)
    assert recorded(run, 641) == (9.0, math.inf, ())
    assert recorded(run, 620) == (None, None, (4.0,) * 13)
    assert recorded(run, 402) == (4.0, 2.0, (*(3.0,) * 31, 4.0))
    assert recorded(run, 660) == (2.0, 1.0, (2.0,) * 32)


def measured(**changes: Any) -> Measured:
    usual = tuple(3.0 + 0.05 * (number % 3) for number in range(20))
    base = Measured(
        run="run", step=50, checkpoint=48, recorded=3.0, recorded_norm=1.0, replayed=3.0, replayed_norm=1.0,
        others=(3.0, 3.1, 3.0), earlier_step=48, earlier=3.05, earlier_others=(3.0, 3.1), usual=usual,
        same_machine=True, undone=False, documents=(),
    )  # fmt: skip
    return replace(base, **changes)


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({}, "nothing"),
        ({"recorded": 7.0}, "hardware"),
        ({"recorded": 7.0, "replayed": 7.0, "earlier": 6.9}, "data"),
        ({"recorded": 7.0, "replayed": 7.0}, "data on this state"),
        ({"recorded": 7.0, "replayed": 7.0, "earlier": None, "earlier_step": None}, "data"),
        ({"recorded": 7.0, "replayed": 7.0, "others": (6.8, 7.1)}, "state"),
        ({"recorded": math.nan, "replayed": math.nan, "others": (math.nan,)}, "state"),
        ({"recorded": math.nan, "replayed": math.nan}, "data on this state"),
        ({"recorded": None}, "nothing"),
        ({"recorded": 3.0001, "same_machine": False}, "nothing"),
    ],
)
def test_the_verdict_follows_from_what_was_measured(changes: dict[str, Any], cause: str) -> None:
    found = autopsy_of(measured(**changes))
    assert found.cause == cause
    assert found.why
    autopsy_text(found)


def test_what_is_not_finite_has_all_shares() -> None:
    assert shares([1.0, 3.0]) == [0.25, 0.75]
    assert shares([1.0, math.nan, math.inf]) == [0, 0.5, 0.5]
    assert shares([0.0, 0.0]) == [0, 0]


def test_what_a_terminal_would_obey_is_written_as_an_escape() -> None:
    assert visible("red \x1b[31m\n水\u202e源\u0007") == "red \\x1b[31m\\n水\\u202e源\\x07"
    assert visible("水" * 200) == "水" * 160 + "..."
    assert visible("\U000e0041 \ud800") == "\\U000e0041 \\ud800"


def test_a_run_can_be_read_from_python(world: World, tmp_path: Path) -> None:
    run = run_of(world, tmp_path / "run", steps=6)
    files = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    replay_step(RunFolder.open(run.path), 3, TokenDataset.open(world.dataset))
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == files, "nothing has changed"
