"""A step that does not fit into memory is done in smaller pieces, with the same result, and the run remembers it."""

from __future__ import annotations

import io
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from headwater.core.progress import SILENT, Reporter
from headwater.diagnose.replaying import facts_of
from headwater.monitor import MonitorConfig
from headwater.monitor.tensor_series import TensorSeries
from headwater.parallel.agreement import Ranks
from headwater.parallel.config import ParallelConfig
from headwater.parallel.launch import launch_local
from headwater.parallel.memory import SmallerPiecesError, first_line, is_out_of_memory
from headwater.parallel.rank_files import LOST_PEER
from headwater.train import RunFolder, announce
from headwater.train.callbacks import Callback
from headwater.train.memory_fit import NoRoomError, smaller
from headwater.train.outcome import Reading
from headwater.train.phases import RunPlan
from headwater.train.train_module import TrainModule
from headwater.train.trainer import Trainer
from headwater.train.weights import load_weights
from headwater.train.what_fits import Fits, WhatFits
from tests.conftest import REPOSITORY
from tests.parallel.ranks import RankError, run_ranks
from tests.train.conftest import World
from tests.train.test_recovery import go

SHORT: dict[str, Any] = {"steps": 12, "checkpoint": {"every": 2}}


class LittleMemory(Callback):
    """From a step on the device has room for so many rows of a forward pass, on one rank or on all."""

    name = "little_memory"

    def __init__(self, rows: int, step: int = 1, rank: int | None = None) -> None:
        self.rows, self.step, self.rank, self.full = rows, step, rank, False

    def before_step(self, trainer: Trainer, step: int) -> None:
        if self.full or step < self.step or self.rank not in (None, trainer.ranks.rank):
            return
        self.full = True
        for stage in trainer.module.stages:
            list(stage.model.layers.values())[-1].register_forward_pre_hook(self._check)  # in the middle of the pass

    def _check(self, module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        if args[0].shape[0] > self.rows:
            torch.empty(1 << 50, dtype=torch.uint8)  # a petabyte, which the allocator refuses


class NoRoomForHeads(Callback):
    """From a step on the look at attention heads, which is the pass in evaluation before a step's own, has no room."""

    name = "no_room_for_heads"

    def __init__(self, step: int, rank: int = 0) -> None:
        self.step, self.rank, self.looking = step, rank, False

    def on_start(self, trainer: Trainer) -> None:
        for stage in trainer.module.stages:
            list(stage.model.layers.values())[-1].register_forward_pre_hook(self._check)

    def before_step(self, trainer: Trainer, step: int) -> None:
        self.looking = step >= self.step and trainer.ranks.rank == self.rank

    def before_update(self, trainer: Trainer, reading: Reading) -> bool:
        self.looking = False
        return True

    def _check(self, module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        if self.looking and not module.training:
            torch.empty(1 << 50, dtype=torch.uint8)


def whole(rows: int, **layout: int) -> ParallelConfig:
    return ParallelConfig.model_validate({"micro_batch": rows, **layout})


def test_the_step_is_done_in_smaller_pieces_and_gives_the_same(world: World, tmp_path: Path) -> None:
    roomy = go(world, tmp_path / "roomy", layout=whole(8), **SHORT)
    small = go(world, tmp_path / "small", LittleMemory(2, step=5), layout=whole(8), **SHORT)
    for row, other in zip(small.metrics(), roomy.metrics(), strict=True):
        assert row["loss"] == pytest.approx(other["loss"], rel=1e-5)
        assert row["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-4)
    told = [event for event in small.events() if event["event"] == "out_of_memory"]
    assert [(event["step"], event["before"], event["micro_batch"]) for event in told] == [(5, 8, 4), (5, 4, 2)]
    assert "can't allocate memory: you tried to allocate 1125899906842624 bytes" in told[0]["reason"]
    assert "\n" not in told[0]["reason"]
    assert json.loads((small.path / "micro_batch.json").read_text())["micro_batch"] == 2
    assert small.ledger_path.read_bytes() == roomy.ledger_path.read_bytes(), "no matter of the run's mathematics"


def test_a_run_that_goes_on_begins_with_what_fits(world: World, tmp_path: Path) -> None:
    class Stops(Callback):
        name = "stops"

        def before_step(self, trainer: Trainer, step: int) -> None:
            if step == 8:
                raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        go(world, tmp_path / "run", LittleMemory(4, step=3), Stops(), layout=whole(8), **SHORT)
    run = go(world, tmp_path / "run", LittleMemory(4), layout=whole(8), **SHORT)
    assert len([event for event in run.events() if event["event"] == "out_of_memory"]) == 1
    assert [event["micro_batch"] for event in run.events() if event["event"] == "resumed"] == [4]


def test_what_a_run_says_it_computes_with_is_what_the_trial_before_it_found(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event that a replay of a step goes by."""
    first = announce.dry_run

    def tight(module: TrainModule, plan: RunPlan) -> float:
        LittleMemory(4).before_step(SimpleNamespace(module=module, ranks=Ranks()), 1)  # type: ignore[arg-type]
        return first(module, plan)

    monkeypatch.setattr(announce, "dry_run", tight)
    run = go(world, tmp_path / "run", layout=whole(8), dry_run=True, **SHORT)
    told = [(event["event"], event["micro_batch"]) for event in run.events() if "micro_batch" in event]
    assert told == [("out_of_memory", 4), ("started", 4)]
    assert facts_of(run, 12)["micro_batch"] == 4


def test_a_replay_takes_the_micro_batch_that_a_step_was_done_with(world: World, tmp_path: Path) -> None:
    run = go(world, tmp_path / "run", LittleMemory(2, step=5), layout=whole(8), **SHORT)
    assert [facts_of(run, step)["micro_batch"] for step in (4, 5, 12)] == [8, 2, 2]


def test_a_sample_that_does_not_fit_ends_the_run_with_words(world: World, tmp_path: Path) -> None:
    with pytest.raises(NoRoomError, match="one sample of 32 tokens does not fit") as caught:
        go(world, tmp_path / "run", LittleMemory(0, step=5), layout=whole(2), **SHORT)
    assert "activation_checkpointing" in caught.value.mend
    alerts = [event for event in RunFolder(tmp_path / "run").events() if event["event"] == "alert"]
    assert "out_of_memory" in {alert["detector"] for alert in alerts}


def on_ranks(world: World, path: Path, layout: ParallelConfig, rank: int | None) -> None:
    go(world, path, LittleMemory(2, step=5, rank=rank), layout=layout, **SHORT)


@pytest.mark.parametrize(("layout", "rank"), [({"dp_shard": 2}, 1), ({"pp": 2}, None)], ids=str)
def test_ranks_start_again_with_what_fits_the_fullest(
    world: World, tmp_path: Path, layout: dict[str, int], rank: int | None
) -> None:
    """One rank has no room while the other waits for it: both end, and go on from the checkpoint."""
    path, parallel = tmp_path / "run", whole(4, **layout)
    with pytest.raises(RankError, match="no memory for a micro-batch of 4"):
        run_ranks(2, on_ranks, world, path, parallel, rank)
    assert json.loads((path / "micro_batch.json").read_text())["micro_batch"] == 2
    run_ranks(2, on_ranks, world, path, parallel, rank)
    run = RunFolder.open(path)
    assert run.status().state == "finished"
    assert [event["micro_batch"] for event in run.events() if event["event"] == "resumed"] == [2]
    alone = go(world, tmp_path / "alone", layout=whole(4), **SHORT)
    for name, tensor in load_weights(alone.path).tensors.items():
        torch.testing.assert_close(load_weights(path).tensors[name], tensor, rtol=0, atol=5e-5, msg=name)


@pytest.mark.timeout(120)
def test_a_launcher_starts_all_again_until_it_fits(world: World, tmp_path: Path) -> None:
    """Twice at the same step, from the same checkpoint: each time with less."""
    run, said = tmp_path / "run", io.StringIO()
    launch_local(
        [sys.executable, "-m", "tests.train.tight_rank", str(world.tokenizer), str(world.dataset), str(run)],
        ranks=2,
        logs=run / "logs",
        max_restarts=3,
        reporter=Reporter(Console(file=said, width=300)),
        environment={"PYTHONPATH": str(REPOSITORY)},
    )
    assert RunFolder.open(run).status().state == "finished"
    assert said.getvalue().count("no memory for a micro-batch of 4: all ranks go on from the last checkpoint") == 1
    assert said.getvalue().count("no memory for a micro-batch of 2: all ranks go on from the last checkpoint") == 1
    assert "(2 of 3)" in said.getvalue()
    assert "(3 of 3)" not in said.getvalue()
    started = [event for event in RunFolder.open(run).events() if event["event"] in ("started", "resumed")]
    assert [(event.get("step", 0), event["micro_batch"]) for event in started] == [(0, 4), (4, 2), (4, 1)]


def test_without_room_to_look_at_heads_the_run_goes_on_without_their_figures(world: World, tmp_path: Path) -> None:
    often = MonitorConfig.model_validate({"collect": {"every": 2}})
    plain = go(world, tmp_path / "plain", monitor=often, **SHORT)
    run = go(world, tmp_path / "run", NoRoomForHeads(4), monitor=often, **SHORT)
    assert [row["loss"] for row in run.metrics()] == [row["loss"] for row in plain.metrics()]
    series = TensorSeries(run.path)
    assert series.matrix("head_entropy").steps.tolist() == [1, 2]
    assert series.matrix("grad_norm").steps.tolist() == [1, 2, 4, 6, 8, 10, 12]
    (told,) = [event for event in run.events() if event["event"] == "warning"]
    assert told["message"].startswith("step 4: no memory to look at attention heads; without their figures from here")
    assert WhatFits(run, {"device": "cpu", "layout": ParallelConfig().describe()}, SILENT).known() == Fits(heads=False)


def looking(world: World, path: Path) -> None:
    often = MonitorConfig.model_validate({"collect": {"every": 2}})
    go(world, path, NoRoomForHeads(4, rank=1), layout=whole(4, dp_shard=2), monitor=often, **SHORT)


def test_ranks_start_again_without_a_look_at_heads(world: World, tmp_path: Path) -> None:
    with pytest.raises(RankError, match="no memory to look at attention heads: all ranks go on"):
        run_ranks(2, looking, world, tmp_path / "run")
    run_ranks(2, looking, world, tmp_path / "run")
    run = RunFolder.open(tmp_path / "run")
    assert run.status().state == "finished"
    assert TensorSeries(run.path).matrix("head_entropy").steps.tolist() == [1, 2]


def found(path: Path, place: dict[str, str]) -> WhatFits:
    return WhatFits(RunFolder(path), place, SILENT)


def test_what_is_remembered_is_of_a_place(tmp_path: Path) -> None:
    here, there = {"device": "cuda", "layout": "tp 2"}, {"device": "cuda", "layout": "tp 4"}
    assert found(tmp_path, here).known() == Fits()
    found(tmp_path, here).remember(Fits(4))
    found(tmp_path, here).remember(Fits(8))
    found(tmp_path, here).remember(Fits(heads=False))
    assert found(tmp_path, here).known() == Fits(4, heads=False)
    assert found(tmp_path, there).known() == Fits()
    (tmp_path / "micro_batch.json").write_text("torn {")
    assert found(tmp_path, here).known() == Fits()
    (tmp_path / "micro_batch.json").write_text(json.dumps({"micro_batch": 2, "facts": here}))
    assert found(tmp_path, here).known() == Fits(2), "as it was written before heads were"


def test_of_ranks_that_find_it_out_at_once_the_least_counts(tmp_path: Path) -> None:
    """Each reads what is known, and writes the least: without a lock one that read early writes late."""
    sizes = [*range(40, 0, -1)]

    def tell(size: int) -> None:
        found(tmp_path / "run", {"layout": "dp 40"}).remember(Fits(size))

    (tmp_path / "run").mkdir()
    with ThreadPoolExecutor(len(sizes)) as pool:
        list(pool.map(tell, sizes))
    assert found(tmp_path / "run", {"layout": "dp 40"}).known() == Fits(1)


def test_what_says_that_there_is_no_memory_is_known() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 50, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nmore words"))
    assert not is_out_of_memory(RuntimeError("shapes do not fit"))
    assert first_line(MemoryError()) == "MemoryError"
    assert first_line(RuntimeError("one\ntwo")) == "one"


def test_halves() -> None:
    assert [smaller(rows, 24, divide=False) for rows in (8, 5, 2, 1)] == [4, 2, 1, None]
    assert [smaller(rows, 24, divide=True) for rows in (24, 10, 3, 1)] == [12, 4, 1, None]
    assert SmallerPiecesError.exit_code == LOST_PEER, "a launcher starts all ranks again"
