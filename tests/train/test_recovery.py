"""Runs that go wrong and mend themselves: which samples they learn from is what their ledger says, whatever happens."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from headwater.core.progress import SILENT, Reporter
from headwater.monitor import MonitorConfig
from headwater.monitor.config import DetectorsConfig
from headwater.parallel.config import ParallelConfig
from headwater.train import RunFolder, train
from headwater.train.callbacks import Callback
from headwater.train.recovery import RecoveryStoppedError
from headwater.train.trainer import Trainer
from headwater.train.weights import load_weights
from tests.parallel.ranks import run_ranks
from tests.train.conftest import TINY, World
from tests.train.poison import Diary, Poison, Window, order_of, windows_by_tokens
from tests.train.test_detection import BrokenWeight

MODEL = {**TINY, "num_key_value_heads": 2}
CONFIG: dict[str, Any] = {
    "steps": 72,
    "global_batch": 8,
    "seq_len": 32,
    "precision": "fp32",
    "optimizer": {"lr": 3e-3},
    "schedule": {"warmup_steps": 5},
    "averaging": {"name": "ema", "decay": 0.9, "every": 2},
    "checkpoint": {"every": 8},
    "validation": {"every": 0, "windows_per_domain": 8},
    "dry_run": False,
}
SHARED, WRONG = 48, range(53, 59)
"""All runs of a test begin as one: up to a checkpoint before the wrong steps."""


class Stops(Callback):
    name = "stops"

    def before_step(self, trainer: Trainer, step: int) -> None:
        if step == SHARED + 1:
            raise RuntimeError("stopped")


def go(
    world: World,
    path: Path,
    *callbacks: Callback,
    layout: ParallelConfig | None = None,
    monitor: MonitorConfig | None = None,
    reporter: Reporter = SILENT,
    **changes: Any,
) -> RunFolder:
    return train(
        dataset=world.dataset, tokenizer=world.tokenizer, run_dir=path, model=MODEL, config={**CONFIG, **changes},
        parallel=layout or ParallelConfig(micro_batch=4), reporter=reporter, callbacks=callbacks, monitor=monitor,
    )  # fmt: skip


@pytest.fixture(scope="module")
def names(world: World) -> dict[bytes, Window]:
    return windows_by_tokens(world, 32)


@pytest.fixture(scope="module")
def beginning(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recovery") / "beginning"
    with pytest.raises(RuntimeError, match="stopped"):
        go(world, path, Stops())
    return path


def begun(beginning: Path, path: Path) -> Path:
    return Path(shutil.copytree(beginning, path))


@pytest.fixture(scope="module")
def clean(world: World, beginning: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return go(world, begun(beginning, tmp_path_factory.mktemp("clean") / "run"))


@pytest.fixture(scope="module")
def guilty(world: World, beginning: Path) -> set[Window]:
    """Five of eight samples of six steps: more than steps are skipped for."""
    order = order_of(world, RunFolder(beginning).ledger(), 0)
    return {(ref.domain, ref.window) for step in WRONG for ref in order.batch(step)[:5]}


@pytest.fixture(scope="module")
def mended(
    world: World, beginning: Path, guilty: set[Window], names: dict[bytes, Window],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[RunFolder, Diary]:  # fmt: skip
    diary = Diary(names)
    return go(world, begun(beginning, tmp_path_factory.mktemp("mended") / "run"), Poison(guilty, names), diary), diary


def actions(run: RunFolder) -> list[str]:
    return [event["action"] for event in run.events() if event["event"] == "recovery"]


def held(run: RunFolder) -> set[int]:
    return {entry.step for entry in run.ledger().effective() if entry.kind == "hold"}


def test_what_was_learned_from_is_exactly_what_the_ledger_says(world: World, mended: tuple[RunFolder, Diary]) -> None:
    run, diary = mended
    assert actions(run)[:4] == ["skip", "skip", "skip", "rewind"]
    order = order_of(world, run.ledger(), 0)
    expected = {step: [(ref.domain, ref.window) for ref in order.batch(step)] for step in range(SHARED + 1, 73)}
    assert diary.learned == expected
    assert diary.held == held(run)
    assert diary.wasted == 7
    learned = [sample for step, samples in diary.learned.items() if step not in diary.held for sample in samples]
    assert len(set(learned)) == len(learned), "no sample is seen twice"
    rows = [row["step"] for row in run.metrics()]
    assert rows == list(range(1, 73)), "no step is recorded twice"
    (rewound,) = (event for event in run.events() if event["event"] == "rewound")
    assert [row["step"] for row in rewound["undone"]] == list(range(49, 56))


def test_the_guilty_samples_are_left_out_and_no_others(
    world: World, beginning: Path, mended: tuple[RunFolder, Diary], guilty: set[Window]
) -> None:
    run, diary = mended
    before = order_of(world, RunFolder(beginning).ledger(), 0)
    draws = {
        (ref.domain, ref.draw): (ref.domain, ref.window) for step in range(SHARED + 1, 73) for ref in before.batch(step)
    }
    left_out = {
        draws[entry.data["domain"], draw]
        for entry in run.ledger().effective()
        if entry.kind == "skip"
        for draw in entry.data["draws"]
    }
    assert len(left_out) == 20, "five of each of the four wrong steps"
    assert left_out <= guilty
    assert not left_out & {sample for samples in diary.learned.values() for sample in samples}


def test_after_the_recovery_the_run_is_as_good_as_one_without_the_bad_samples(
    clean: RunFolder, mended: tuple[RunFolder, Diary]
) -> None:
    ours, theirs = (run.final_record["metrics"]["val_loss"]["all"] for run in (mended[0], clean))
    assert ours == pytest.approx(theirs, rel=0.005)


def test_a_skipped_step_leaves_everything_as_it_was(
    world: World, beginning: Path, guilty: set[Window], names: dict[bytes, Window], tmp_path: Path
) -> None:
    """Weights, optimizer, averages; the schedule goes by steps and is where it would be."""

    class Look(Callback):
        name = "look"
        before: dict[str, torch.Tensor]

        def __init__(self) -> None:
            self.same: dict[int, bool] = {}
            self.lr: dict[int, float] = {}

        def before_step(self, trainer: Trainer, step: int) -> None:
            self.before = {name: tensor.clone() for name, tensor in trainer.module.state_tensors().items()}

        def after_step(self, trainer: Trainer, outcome: Any) -> None:
            after = trainer.module.state_tensors()
            self.same[trainer.step] = all(torch.equal(after[name], tensor) for name, tensor in self.before.items())
            self.lr[trainer.step] = outcome.lr
            if trainer.step == 55:
                raise RuntimeError("seen")

    look = Look()
    with pytest.raises(RuntimeError, match="seen"):
        go(world, begun(beginning, tmp_path / "run"), Poison(guilty, names), look)
    assert look.same == {step: step >= 53 for step in range(49, 56)}
    rates = [look.lr[step] for step in range(49, 56)]
    assert rates == sorted(rates, reverse=True)
    assert len(set(rates)) == 7


# Killed.


def child(work: Callable[[], object]) -> int:
    """Run in a forked process; its exit status (negative: the signal that ended it)."""
    pid = os.fork()
    if pid == 0:
        try:
            torch.set_num_threads(1)
            work()
            os._exit(0)
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class KilledAtWrite(Callback):
    """From the first wrong step on, counts what is written to disk, and dies at one of these moments, by SIGKILL."""

    name = "killed"

    def __init__(self, moment: int, count: Path | None = None) -> None:
        self.moment, self.count, self.seen = moment, count, 0

    def before_step(self, trainer: Trainer, step: int) -> None:
        if step != WRONG[0] or self.seen:
            return
        self.seen = 1
        for name in ("write", "fsync", "rename", "replace", "truncate", "ftruncate"):
            setattr(os, name, self._watched(getattr(os, name)))

    def _watched(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **named: Any) -> Any:
            self.seen += 1
            if self.seen == self.moment:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **named)

        return watched

    def on_end(self, trainer: Trainer) -> None:
        if self.count is not None:
            self.count.write_text(str(self.seen))


def state_of(run: RunFolder) -> dict[str, Any]:
    """All of the last checkpoint: its tensors' hashes, and its state without that of callbacks of tests."""
    assert run.final is not None
    files = {name: facts for name, facts in run.final.manifest()["files"].items() if name != "state.json"}
    state = json.loads((run.final.path / "state.json").read_text())
    of_tests = ("killed", "poison", "diary", "stops")
    callbacks = {name: value for name, value in state["callbacks"].items() if name not in of_tests}
    return {"files": files, **state, "callbacks": callbacks}


@pytest.mark.parametrize("kills", [4, pytest.param(60, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])])
def test_killed_at_any_moment_of_a_recovery_the_run_ends_in_the_same_weights_and_the_same_ledger(
    world: World, beginning: Path, mended: tuple[RunFolder, Diary], guilty: set[Window], names: dict[bytes, Window],
    tmp_path: Path, kills: int,
) -> None:  # fmt: skip
    undisturbed = mended[0]
    counted = tmp_path / "count"
    poison = Poison(guilty, names)
    assert child(lambda: go(world, begun(beginning, tmp_path / "counted"), poison, KilledAtWrite(-1, counted))) == 0
    moments = int(counted.read_text())
    ledger = undisturbed.ledger_path.read_bytes()
    assert (tmp_path / "counted" / "ledger.jsonl").read_bytes() == ledger
    weights = load_weights(undisturbed.path).tensors
    for moment in range(2, moments, max(1, moments // kills)):
        path = begun(beginning, tmp_path / f"killed-{moment}")
        killer = KilledAtWrite(moment)
        assert child(lambda: go(world, path, poison, killer)) == -signal.SIGKILL  # noqa: B023
        assert child(lambda: go(world, path, poison)) == 0  # noqa: B023
        assert RunFolder(path).ledger_path.read_bytes() == ledger, moment
        assert all(torch.equal(tensor, weights[name]) for name, tensor in load_weights(path).tensors.items()), moment
        assert state_of(RunFolder(path)) == state_of(undisturbed), moment


# On several ranks.


def rank_story(
    world: World, path: Path, layout: ParallelConfig, guilty: set[Window], names: dict[bytes, Window]
) -> dict[int, list[Window]]:
    diary = Diary(names)
    go(world, path, Poison(guilty, names), diary, layout=layout)
    return diary.learned


@pytest.mark.parametrize("layout", [{"dp_shard": 2}, {"tp": 2}, {"pp": 2}], ids=str)
def test_ranks_recover_together(
    world: World, beginning: Path, mended: tuple[RunFolder, Diary], guilty: set[Window], names: dict[bytes, Window],
    tmp_path: Path, layout: dict[str, int],
) -> None:  # fmt: skip
    path, parallel = begun(beginning, tmp_path / "run"), ParallelConfig.model_validate({**layout, "micro_batch": 2})
    learned = run_ranks(2, rank_story, world, path, parallel, guilty, names, timeout=120)
    run, (alone, diary) = RunFolder.open(path), mended
    assert run.ledger_path.read_bytes() == alone.ledger_path.read_bytes()
    parts = learned if "dp_shard" in layout else learned[:1]
    assert {step: [s for part in parts for s in part[step]] for step in learned[0]} == diary.learned
    ours, theirs = load_weights(path).tensors, load_weights(alone.path).tensors
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=0, atol=2e-4, msg=name)


# Weights that change by themselves.


class FlipsBit(Callback):
    """A bit of a mantissa, once: no loss would tell."""

    name = "flips"
    done = False

    def before_step(self, trainer: Trainer, step: int) -> None:
        if step == 57 and not self.done:
            self.done = True
            with torch.no_grad():
                trainer.module.parameters["model.norm.weight"][3:4].view(torch.int32).bitwise_xor_(1 << 9)

    def on_rewind(self, trainer: Trainer) -> None:
        self.left = [ref.step for ref in trainer.run.checkpoints()]


def test_after_a_flipped_bit_the_run_is_bitwise_the_one_without(
    world: World, beginning: Path, clean: RunFolder, tmp_path: Path
) -> None:
    """A checkpoint from just after the last update may have the bit as well, so it is not gone back to."""
    flips = FlipsBit()
    run = go(world, begun(beginning, tmp_path / "run"), flips)
    assert flips.left == [48], "that of step 56, undone, takes no place among the two that are kept"
    assert actions(run) == ["rewind"]
    (rewind,) = run.ledger().rewinds()
    assert (rewind.step, rewind.data["to"], rewind.data["why"]) == (57, 48, ["changed_weights"])
    assert not [entry for entry in run.ledger() if entry.kind == "skip"]
    ours, theirs = load_weights(run.path).tensors, load_weights(clean.path).tensors
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())


# Up the ladder.


class Breaks(BrokenWeight):
    """A weight is infinite before every step from one on: nothing that a run can do by itself helps."""

    def before_step(self, trainer: Trainer, step: int) -> None:
        if step >= self.step:
            self.step, first = step, self.step
            super().before_step(trainer, step)
            self.step = first


def test_a_run_that_cannot_be_helped_stops_with_a_report(world: World, beginning: Path, tmp_path: Path) -> None:
    once = {"skip": {"times": 1}, "rewind": {"times": 1}, "lower_lr": {"times": 1, "steps": 9}}
    path = begun(beginning, tmp_path / "run")
    unchecked = MonitorConfig(detectors=DetectorsConfig(check_weights=False))
    with pytest.raises(RecoveryStoppedError, match="non finite again") as caught:
        go(world, path, Breaks(51, "model.layers.0.mlp.up_proj.weight"), recovery=once, monitor=unchecked)
    assert caught.value.exit_code == 3
    run = RunFolder.open(path)
    assert actions(run) == ["skip", "rewind", "skip", "lower_lr", "skip"]
    report = json.loads((path / "stopped.json").read_text())
    assert (report["step"], report["onset"], report["why"]) == (52, 51, ["non_finite"])
    assert [entry["kind"] for entry in report["done"]] == ["hold", "rewind", "hold", "rewind", "lr", "hold"]
    first, second = (entry for entry in run.ledger() if entry.kind == "rewind")
    assert "then" not in first.data, "broken weights say nothing against the data"
    assert second.data["to"] < first.data["to"], "once more for the same trouble: further back"
    mended = go(world, path, recovery=once)  # what broke weights is gone
    assert mended.status().state == "finished"
    assert not (path / "stopped.json").exists()
    rates = {row["step"]: row["lr"] for row in mended.metrics()}
    until = next(entry.data["until"] for entry in run.ledger() if entry.kind == "lr")
    assert rates[until] < 0.6 * rates[until + 1]


def test_weights_that_keep_changing_stop_the_run(world: World, beginning: Path, tmp_path: Path) -> None:
    path = begun(beginning, tmp_path / "a run")
    with pytest.raises(RecoveryStoppedError, match="changed weights") as caught:
        go(world, path, Breaks(51, "model.layers.0.mlp.up_proj.weight"))
    assert actions(RunFolder(path)) == ["rewind", "rewind"]
    assert f"headwater doctor '{path}' --step 50" in caught.value.mend
    assert "goes on from the newest checkpoint" in caught.value.mend


def test_a_run_that_stops_before_its_first_checkpoint_promises_none(world: World, tmp_path: Path) -> None:
    none = {"skip": {"times": 0}, "rewind": {"times": 0}, "lower_lr": {"times": 0}}
    with pytest.raises(RecoveryStoppedError, match="changed weights") as caught:
        go(world, tmp_path / "run", Breaks(5, "model.layers.0.mlp.up_proj.weight"), recovery=none,
           checkpoint={"every": 1000})  # fmt: skip
    same = "begins anew, as there is no checkpoint, and comes to the same stop unless something is changed"
    assert f"Running again {same}: with more patience" in caught.value.mend
    heard = io.StringIO()
    with pytest.raises(RecoveryStoppedError, match="changed weights"):
        go(world, tmp_path / "run", Breaks(5, "model.layers.0.mlp.up_proj.weight"), recovery=none,
           checkpoint={"every": 1000}, reporter=Reporter(Console(file=heard, width=300)))  # fmt: skip
    assert f"the run had stopped itself: it {same}" in heard.getvalue()


def test_without_a_checkpoint_to_go_back_to_the_run_slows_down(
    world: World, guilty: set[Window], names: dict[bytes, Window], tmp_path: Path
) -> None:
    run = go(world, tmp_path / "run", Poison(guilty, names), steps=62, checkpoint={"every": 1000})
    assert actions(run)[:4] == ["skip", "skip", "skip", "lower_lr"]
    (lower,) = (entry for entry in run.ledger() if entry.kind == "lr")
    assert (lower.data["factor"], lower.data["until"]) == (0.5, lower.step - 1 + 500)
    rates = {row["step"]: row["lr"] for row in run.metrics()}
    assert rates[lower.step] < 0.6 * rates[lower.step - 1]
