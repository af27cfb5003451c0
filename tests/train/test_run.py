"""A run as a whole: what it writes, what it refuses, what it says, what others get from it."""

from __future__ import annotations

import io
import json
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn

from headwater.core.errors import CorruptArtifactError, DiskSpaceError, InputError, RecipeError, UserError
from headwater.core.locks import FolderLock
from headwater.core.progress import Reporter
from headwater.model import Decoder, ModelConfig
from headwater.monitor import MonitorConfig, write_report
from headwater.parallel.config import ParallelConfig
from headwater.tokenizer import Tokenizer
from headwater.train import RunFolder, TrainConfig, train, train_run
from headwater.train.callbacks import Callback
from headwater.train.config import SamplingConfig
from headwater.train.sampling import SamplingCallback
from headwater.train.train_module import StepOutcome
from headwater.train.trainer import Interrupted, Trainer
from headwater.train.weights import find_checkpoint, load_weights
from tests.train.conftest import TINY, World

CONFIG: dict[str, Any] = {
    "steps": 6,
    "global_batch": 4,
    "seq_len": 32,
    "checkpoint": {"every": 2},
    "validation": {"every": 3, "windows_per_domain": 2},
    "dry_run": False,
}


def small_run(world: World, run_dir: Path, reporter: Reporter | None = None, **changes: Any) -> RunFolder:
    options = {key: changes.pop(key) for key in ("callbacks", "seed", "micro_batch", "monitor") if key in changes}
    return train(
        dataset=world.dataset,
        tokenizer=world.tokenizer,
        run_dir=run_dir,
        model=changes.pop("model", TINY),
        config={**CONFIG, **changes},
        reporter=reporter or Reporter(quiet=True),
        **options,
    )


@pytest.fixture(scope="module")
def finished(world: World, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return small_run(world, tmp_path_factory.mktemp("runs") / "run-1", averaging={"name": "ema", "every": 1})


def test_a_finished_run_can_be_read_by_whoever_comes_later(world: World, finished: RunFolder) -> None:
    run = RunFolder.open(finished.path)
    assert (run.status().state, run.status().step, run.status().steps) == ("finished", 6, 6)
    assert run.final is not None
    assert run.final.step == 6
    assert run.final.name == "step-00000006"
    assert [ref.step for ref in run.checkpoints()] == [6, 4]
    assert run.record["seed"] == 0
    assert run.record["model"]["vocab_size"] == 512
    assert run.record["dataset"] == run.final.manifest()["dataset"]
    assert run.final.manifest()["ledger"] == run.ledger().head
    assert run.final_record["tokens"] == 6 * 4 * 32
    assert set(run.final_record["metrics"]["val_bits_per_byte"]) == {"all", "code", "web"}
    assert Tokenizer.load(run.path).sha256 == Tokenizer.load(world.tokenizer).sha256


def test_every_step_is_recorded_with_the_keys_others_read(finished: RunFolder) -> None:
    rows = list(finished.metrics())
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    for row in rows:
        for key in (
            "loss",
            "perplexity",
            "bits_per_byte",
            "grad_norm",
            "lr",
            "throughput",
            "mem_allocated",
            "loss_sma",
        ):
            assert row[key] > 0
        assert row["gpu_util"] is None
        parts = row["forward_backward_seconds"] + row["optimizer_seconds"] + row["data_wait_seconds"]
        assert 0 < parts <= row["step_seconds"] * 1.01
    assert [row["step"] for row in rows if "val_loss" in row] == [3, 6]
    assert "val_loss_averaged" in rows[-1]
    assert rows[-1]["tokens"] == sum(rows[-1]["domain_tokens"].values()) == 768


def test_the_report_of_a_run_is_written_from_its_folder(finished: RunFolder, tmp_path: Path) -> None:
    page = write_report(finished.path, tmp_path / "report.html").read_text("utf-8")
    assert "Validation bits per byte" in page
    assert "step-00000006" in page


def test_weights_come_out_averaged_or_as_trained(finished: RunFolder) -> None:
    plain, averaged = load_weights(finished.path, averaged=False), load_weights(finished.path)
    assert averaged.averaged
    assert not plain.averaged
    assert averaged.step == 6
    model = Decoder(ModelConfig.model_validate(plain.model))
    for weights in (plain, averaged):
        missing = model.load_state_dict(weights.tensors, strict=True)
        assert not missing.missing_keys
    assert any(not torch.equal(plain.tensors[name], averaged.tensors[name]) for name in plain.tensors)
    assert load_weights(finished.path / "checkpoints" / "step-00000004").step == 4
    assert RunFolder.of(finished.path / "checkpoints" / "step-00000004").run_id == "run-1"
    assert RunFolder.of(finished.path).run_id == "run-1"


def test_a_finished_run_whose_checkpoint_is_damaged_ends_the_same_again(world: World, tmp_path: Path) -> None:
    run = small_run(world, tmp_path / "run")
    assert run.final is not None
    before = run.final.manifest()
    part = next(run.final.path.glob("*.distcp"))
    part.write_bytes(part.read_bytes()[:1000])
    with pytest.raises(CorruptArtifactError, match="1,000 bytes instead of") as caught:
        load_weights(run.path)
    assert caught.value.mend.startswith("remove the checkpoint's folder and train again")
    shutil.rmtree(run.final.path)
    again = small_run(world, tmp_path / "run").final
    assert again is not None
    assert again.manifest() == before


def test_asking_for_what_a_run_does_not_have_is_answered(world: World, finished: RunFolder, tmp_path: Path) -> None:
    run = small_run(world, tmp_path / "plain", steps=2)
    with pytest.raises(InputError, match="no averaged weights"):
        load_weights(run.path, averaged=True)
    with pytest.raises(InputError, match=r"run\.json"):
        find_checkpoint(tmp_path / "nowhere")
    broken = tmp_path / "broken"
    shutil.copytree(finished.path, broken)
    (broken / "run.json").write_text("{")
    with pytest.raises(CorruptArtifactError, match="no JSON from line 1, column 2"):
        RunFolder.open(broken).status()


def test_reading_a_run_imports_no_torch(finished: RunFolder) -> None:
    code = (
        "import sys\nfrom headwater.train import RunFolder, TrainConfig\nfrom headwater.train.phases import plan_run\n"
        f"run = RunFolder.open({str(finished.path)!r})\nrun.status(), run.final.manifest(), list(run.metrics())\n"
        "run.ledger().order_settings()\n"
        "assert not {'torch', 'pyarrow', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_same_seed_gives_the_same_run_and_another_another(world: World, tmp_path: Path) -> None:
    a, b, c = (small_run(world, tmp_path / name, seed=seed) for name, seed in (("a", 5), ("b", 5), ("c", 6)))
    losses = [[row["loss"] for row in run.metrics()] for run in (a, b, c)]
    assert losses[0] == losses[1] != losses[2]


def texts(model: nn.Module, prompts: Sequence[str], max_tokens: int, seed: int) -> list[str]:
    assert not model.training
    torch.rand(100)  # what a sampler draws must not disturb training
    return [f"{prompt}!" * 2 for prompt in prompts]


def test_samples_are_written_and_change_nothing(world: World, tmp_path: Path) -> None:
    plain = small_run(world, tmp_path / "plain")
    sampling = SamplingCallback(SamplingConfig(every=2, prompts=("水", "")), texts)
    sampled = small_run(world, tmp_path / "sampled", callbacks=[sampling], sampling={"every": 2})
    assert [(s["step"], s["prompt"], s["text"]) for s in sampled.samples()][:2] == [(2, "水", "水!水!"), (2, "", "!!")]
    assert [s["step"] for s in sampled.samples()] == [2, 2, 4, 4, 6, 6]
    assert [r["loss"] for r in plain.metrics()] == [r["loss"] for r in sampled.metrics()]
    ours, theirs = load_weights(plain.path), load_weights(sampled.path)
    assert all(torch.equal(ours.tensors[name], theirs.tensors[name]) for name in ours.tensors)


class RoomAgain(Callback):
    """Ends the fullness of the disk that the sampler began."""

    name = "room_again"

    def __init__(self) -> None:
        self.limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def after_step(self, trainer: Trainer, outcome: StepOutcome) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self.limits)


def test_a_full_disk_costs_texts_and_files_of_tensors_but_not_the_run(world: World, tmp_path: Path) -> None:
    heard = io.StringIO()
    room = RoomAgain()

    def full(model: nn.Module, prompts: Sequence[str], max_tokens: int, seed: int) -> list[str]:
        if seed < 6:  # the step
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, room.limits[1]))
        return texts(model, prompts, max_tokens, seed)

    sampling = SamplingCallback(SamplingConfig(every=2, prompts=("水", "")), full)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "tensors").write_text("a file, where a folder is to be")
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        run = small_run(
            world,
            tmp_path / "run",
            callbacks=[sampling, room],
            sampling={"every": 2},
            checkpoint={"every": 5, "async_save": False},
            reporter=Reporter(console=Console(file=heard, width=300)),
        )
    finally:
        signal.signal(signal.SIGXFSZ, ignored)
    assert run.status().state == "finished"
    assert [sample["step"] for sample in run.samples()] == [6, 6]
    assert heard.getvalue().count("samples.jsonl cannot take what this run tells") == 1
    assert heard.getvalue().count("tensors cannot take what this run tells") == 1


class Counter(Callback):
    """Counts hooks, keeps its count in the checkpoint, and may stop the run as a bug would."""

    name = "counter"

    def __init__(self, fail_at: int = -1) -> None:
        self.count = 0
        self.fail_at = fail_at
        self.calls: list[str] = []

    def on_start(self, trainer: Trainer) -> None:
        self.calls.append("start")

    def after_step(self, trainer: Trainer, outcome: StepOutcome) -> None:
        self.count += 1
        if trainer.step == self.fail_at:
            raise RuntimeError("a bug")

    def on_end(self, trainer: Trainer) -> None:
        self.calls.append("end")

    def close(self, trainer: Trainer) -> None:
        self.calls.append("close")

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


def test_a_callbacks_state_goes_on_after_an_error(world: World, tmp_path: Path) -> None:
    first, second = Counter(fail_at=5), Counter()
    with pytest.raises(RuntimeError, match="a bug"):
        small_run(world, tmp_path / "run", callbacks=[first])
    assert first.calls == ["start", "close"]
    run = small_run(world, tmp_path / "run", callbacks=[second])
    assert second.calls == ["start", "end", "close"]
    assert second.count == 6
    assert [row["step"] for row in run.metrics()] == [1, 2, 3, 4, 5, 6]
    resumed = [event for event in run.events() if event["event"] == "resumed"]
    assert resumed[0]["step"] == 4


def test_a_window_may_be_one_text(world: World, tmp_path: Path) -> None:
    """Without document masks attention crosses borders, so the loss differs from the first step on."""
    masked, open_ = small_run(world, tmp_path / "a"), small_run(world, tmp_path / "b", document_mask=False)
    first = [next(run.metrics())["loss"] for run in (masked, open_)]
    assert first[0] != first[1]
    assert first[0] == pytest.approx(first[1], rel=0.01)


def test_two_callbacks_of_one_name_are_refused(world: World, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="name of its own"):
        small_run(world, tmp_path / "run", callbacks=[Counter(), Counter()])


def test_it_says_what_it_decided_and_why(world: World, tmp_path: Path) -> None:
    out = io.StringIO()
    reporter = Reporter(Console(file=out, width=200, soft_wrap=True))
    ramp = {"start": 2, "increment": 2, "steps": 2}
    small_run(world, tmp_path / "run", reporter, dry_run=True, optimizer={"name": "muon"}, batch_ramp=ramp)
    text = out.getvalue()
    for expected in (
        "parameters",
        "6 steps of 2 x 32, 4 x 32 tokens: 640 tokens",
        "Muon, learning rate 0.0003",
        "warm-up of 0 steps, cosine to 0.1 of it",
        "epochs",
        "micro-batch of 4 samples  (the whole batch at once)",
        "checkpoints of",
        "tokens a second",
        "step 3: phase main, 4 x 32 tokens",
        "trained 6 steps, 640 tokens",
    ):
        assert expected in text, text


def test_metrics_are_served_while_training(world: World, tmp_path: Path) -> None:
    import urllib.request

    class Ask(Callback):
        name = "ask"

        def after_step(self, trainer: Trainer, outcome: StepOutcome) -> None:
            if trainer.step == 4:
                url = json.loads((trainer.run.path / "endpoints.json").read_text())["metrics"]
                with urllib.request.urlopen(url, timeout=5) as answer:
                    self.text = answer.read().decode()

    ask = Ask()
    monitor = MonitorConfig(prometheus={"enabled": True, "port": 18231}, console=False)
    run = small_run(world, tmp_path / "run", callbacks=[ask], monitor=monitor)
    row = list(run.metrics())[2]
    assert f'llm_train_loss{{run="run"}} {row["loss"]}' in ask.text
    assert 'llm_val_loss{domain="web",run="run"}' in ask.text
    assert not (run.path / "endpoints.json").exists()
    assert list((tmp_path / "prometheus-targets").iterdir()) == [], "a run that has ended is no target"


def test_a_rarer_record_still_has_the_last_step_and_all_validations(world: World, tmp_path: Path) -> None:
    run = small_run(world, tmp_path / "run", steps=7, monitor=MonitorConfig(every=5))
    assert [row["step"] for row in run.metrics()] == [1, 3, 5, 6, 7]


def test_without_a_cadence_there_is_a_checkpoint_at_the_end(world: World, tmp_path: Path) -> None:
    run = small_run(world, tmp_path / "run", checkpoint={})
    assert [ref.step for ref in run.checkpoints()] == [6]


def test_permanent_checkpoints_stay(world: World, tmp_path: Path) -> None:
    run = small_run(world, tmp_path / "run", steps=9, checkpoint={"every": 2, "keep": 1, "permanent_every": 3})
    assert sorted(ref.step for ref in run.checkpoints()) == [3, 6, 9]


@pytest.mark.parametrize(
    ("changes", "error", "where"),
    [
        ({"steps": None}, RecipeError, "train"),
        ({"seq_len": 129}, RecipeError, "train.seq_len"),
        ({"max_epochs": 0.001}, RecipeError, "train.max_epochs"),
        ({"mixture": {"books": 1.0}}, RecipeError, "mixture"),
        ({"model": {**TINY, "vocab_size": 999}}, RecipeError, "model.vocab_size"),
        ({"model": {**TINY, "hidden_size": 65536, "num_hidden_layers": 200}}, RecipeError, "model"),
        ({"device": "cuda"}, RecipeError, "train.device"),
    ],
)
def test_what_cannot_be_trained_is_refused_with_the_field(
    world: World, tmp_path: Path, changes: dict[str, Any], error: type[UserError], where: str
) -> None:
    if changes.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(error) as caught:
        small_run(world, tmp_path / "run", **changes)
    assert caught.value.where == where
    assert caught.value.mend
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_run_that_differs_is_not_mixed_with_one_that_is_there(world: World, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        small_run(world, tmp_path / "run", callbacks=[Counter(fail_at=3)])
    with pytest.raises(UserError, match=r"differs in train.z_loss \(0.0 there, 0.5 here\)"):
        small_run(world, tmp_path / "run", z_loss=0.5)
    with pytest.raises(UserError, match=r"differs in seed \(\d+ there, 9 here\)"):
        small_run(world, tmp_path / "run", seed=9)
    run = small_run(world, tmp_path / "run", checkpoint={"every": 5}, micro_batch=1)  # operational: may change
    assert run.status().state == "finished"
    with pytest.raises(UserError, match=r"differs in .*model.hidden_size \(32 there, 64 here\)"):
        small_run(world, tmp_path / "run", model={**TINY, "hidden_size": 64})
    assert small_run(world, tmp_path / "run").record == run.record


def test_two_processes_do_not_train_in_one_folder(world: World, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with FolderLock(tmp_path / "run"):
        assert RunFolder(tmp_path / "run").status().state == "running"
        with pytest.raises(UserError, match="writes here"):
            small_run(world, tmp_path / "run")


def test_a_layout_of_many_ranks_is_named_as_not_for_this_version(world: World, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="8 ranks"):
        train_run(
            config=TrainConfig(**CONFIG),
            model=ModelConfig(**TINY),
            parallel=ParallelConfig(dp_replicate=8),
            monitor=MonitorConfig(),
            dataset=world.dataset,
            tokenizer=world.tokenizer,
            seed=0,
            run_dir=tmp_path / "run",
        )


def test_checkpoints_that_do_not_fit_on_the_disk_are_refused_before_step_one(world: World, tmp_path: Path) -> None:
    model = {**TINY, "hidden_size": 64}
    with pytest.raises(DiskSpaceError, match="more checkpoints needs about"):
        small_run(world, tmp_path / "run", model=model, steps=10**9, checkpoint={"permanent_every": 1})


def test_a_ledger_that_was_edited_stops_the_run(world: World, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        small_run(world, tmp_path / "run", callbacks=[Counter(fail_at=3)])
    ledger = tmp_path / "run" / "ledger.jsonl"
    ledger.write_bytes(ledger.read_bytes().replace(b'"seq_len":32', b'"seq_len":64'))
    with pytest.raises(CorruptArtifactError, match="chain"):
        small_run(world, tmp_path / "run")


def test_a_checkpoint_of_another_ledger_is_refused(world: World, tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 2)):
        with pytest.raises(RuntimeError):
            small_run(world, tmp_path / name, callbacks=[Counter(fail_at=5)], seed=seed)
    shutil.rmtree(tmp_path / "a" / "checkpoints")
    shutil.copytree(tmp_path / "b" / "checkpoints", tmp_path / "a" / "checkpoints")
    with pytest.raises(CorruptArtifactError, match="another history"):
        small_run(world, tmp_path / "a", seed=1)


def test_interrupted_is_a_keyboard_interrupt() -> None:
    """So that the command line answers 130 to it, as to any other Ctrl-C."""
    assert issubclass(Interrupted, KeyboardInterrupt)


def test_every_operational_field_leaves_the_identity_alone() -> None:
    from headwater.core.config import identity

    base = TrainConfig(steps=5)
    changed = TrainConfig(
        steps=5,
        device="cpu",
        compile=True,
        activation_checkpointing="full",
        dry_run=False,
        deterministic=False,
        checkpoint={"every": 3, "keep": 5, "async_save": False},
        validation={"every": 1},
        sampling={"every": 1},
    )
    assert identity(base) == identity(changed)
    assert identity(base) != identity(TrainConfig(steps=5, z_loss=0.1))
