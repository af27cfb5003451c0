"""A training run from start to finish, or from where it was to finish.

In: configuration of training and model, a packed dataset, a tokenizer, a folder. Out: that folder as a finished
`RunFolder`. Run again, a finished run is returned as it is; a partial one goes on from its newest good checkpoint and
ends in the same weights and the same record, bit for bit, as if nothing had happened.

    train(dataset="workspace/dataset/0123", tokenizer="workspace/tokenizer/4567", run_dir="runs/first",
          model={"hidden_size": 192, "num_hidden_layers": 6, "num_attention_heads": 6},
          config={"tokens": 5_000_000, "global_batch": 32, "seq_len": 256})
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch

from headwater.core.config import identity
from headwater.core.errors import RecipeError, UserError
from headwater.core.files import TEMP_PREFIX, free_bytes_check, sha256_bytes
from headwater.core.jsonl import plain_json
from headwater.core.locks import FolderLock
from headwater.core.progress import SILENT, Reporter
from headwater.dataset import DatasetConfig, StepOrder, TokenDataset
from headwater.model import ModelConfig, keep_freed_memory
from headwater.monitor import MonitorConfig
from headwater.parallel.agreement import Ranks
from headwater.parallel.config import ParallelConfig
from headwater.parallel.context import context_decision
from headwater.parallel.divisibility import check_divisible
from headwater.parallel.environment import World
from headwater.parallel.mesh import Mesh
from headwater.parallel.precision import choose_precision, matrix_products
from headwater.tokenizer import Tokenizer
from headwater.train import announce, devices, estimate
from headwater.train.callbacks import Callback
from headwater.train.checkpoint import CheckpointStore
from headwater.train.checkpointing import CheckpointCallback
from headwater.train.collectors import CollectorsCallback
from headwater.train.config import TrainConfig
from headwater.train.data import RunData, validation_windows
from headwater.train.detection import DetectionCallback
from headwater.train.guesses import guess_losses
from headwater.train.ledger import RunLedger, record_plan
from headwater.train.metrics import MetricsCallback
from headwater.train.mixing import mixed
from headwater.train.objective import build_objective, objective_problems
from headwater.train.phase_changes import PhaseCallback
from headwater.train.phases import plan_run
from headwater.train.recovery import RecoveryCallback
from headwater.train.resuming import Resuming
from headwater.train.rng import seed_everything
from headwater.train.run_folder import RunFolder
from headwater.train.sampling import SamplingCallback
from headwater.train.start import FollowerRun, connected
from headwater.train.storage import cached
from headwater.train.train_module import TrainModule
from headwater.train.trainer import Trainer
from headwater.train.validation import ValidationCallback
from headwater.train.what_fits import REMEMBERED, WhatFits

FORMAT = 1

SAVE_TIMEOUT_SECONDS = 6 * 3600.0
"""For ranks of one save to wait for each other. A rank that died is noticed at once, whatever this says."""


def train(
    *,
    dataset: Path | str,
    tokenizer: Path | str,
    run_dir: Path | str,
    model: ModelConfig | dict[str, Any],
    config: TrainConfig | dict[str, Any],
    monitor: MonitorConfig | None = None,
    micro_batch: int | None = None,
    parallel: ParallelConfig | None = None,
    seed: int = 0,
    reporter: Reporter = SILENT,
    callbacks: Sequence[Callback] = (),
) -> RunFolder:
    """Train straight from files, without a recipe. Arguments and errors as `train_run`; `micro_batch` is for the usual
    case of one process, without a `parallel`."""
    return train_run(
        config=config if isinstance(config, TrainConfig) else TrainConfig.model_validate(config),
        model=model if isinstance(model, ModelConfig) else ModelConfig.model_validate(model),
        parallel=parallel or ParallelConfig(micro_batch=micro_batch),
        monitor=monitor or MonitorConfig(),
        dataset=Path(dataset),
        tokenizer=Path(tokenizer),
        seed=seed,
        run_dir=Path(run_dir),
        reporter=reporter,
        callbacks=callbacks,
    )


def train_run(
    *,
    config: TrainConfig,
    model: ModelConfig,
    parallel: ParallelConfig,
    monitor: MonitorConfig,
    dataset: Path,
    tokenizer: Path,
    seed: int,
    run_dir: Path,
    reporter: Reporter = SILENT,
    recipe_text: str = "",
    callbacks: Sequence[Callback] = (),
    storage: DatasetConfig | None = None,
) -> RunFolder:
    """Train, or go on training, in `run_dir`.

    In a layout of several ranks every rank calls this with the same arguments, started by torchrun; `run_dir` and
    `dataset` are on a file system that all see. Rank 0 writes and reports; errors are raised by all.

    `callbacks` are called after validation and before metrics and checkpoints. `storage` says whether shards are cached
    (`cache_dir` and what belongs to it). Raises RecipeError for what cannot be
    trained as asked, LockedError while another process trains here, DiskSpaceError, `NonFiniteError` when training
    diverges, and `Interrupted` (a KeyboardInterrupt) after a signal, with a checkpoint saved. UserError if the folder
    holds a run, finished or not, of other settings, data or tokenizer.
    """
    for where, what, mend in objective_problems(config, model, parallel):
        raise RecipeError(what, where=where, mend=mend)
    run = RunFolder(run_dir)
    if run.final is not None:
        _refuse_another(run, _record(config, model, seed, TokenDataset.open(dataset), Tokenizer.load(tokenizer)))
        reporter.info(f"{run.path} is trained already: {run.final.step:,} steps")
        return run
    with connected(parallel, config.device) as (mesh, ranks), ExitStack() as stack:
        ranks.on_first(lambda: _take(run_dir, stack))
        if not ranks.first:
            run, reporter = FollowerRun(run_dir), SILENT
        storage = storage or DatasetConfig()
        parts = _Run(config, model, mesh, ranks, monitor, dataset, tokenizer, seed, run, reporter, recipe_text, storage)
        with cached(parts.dataset, storage, parts.reporter):
            return parts.go(callbacks)


def _sharing(device: torch.device) -> int:
    """Processes that share the free memory this one sees."""
    return World.from_env().local_size if device.type == "cpu" else 1


def _take(run_dir: Path, stack: ExitStack) -> None:
    """Lock the run's folder until the stack closes, and make it."""
    stack.enter_context(FolderLock(run_dir))
    run_dir.mkdir(parents=True, exist_ok=True)


def _record(
    config: TrainConfig, model: ModelConfig, seed: int, dataset: TokenDataset, tokenizer: Tokenizer
) -> dict[str, Any]:
    """What makes a run this one and no other, as `run.json` has it."""
    return {
        "format": FORMAT,
        "model": model.with_vocab_size(tokenizer.vocab_size).to_dict(),
        "train": plain_json(identity(config)),
        "seed": seed,
        "dataset": dataset.fingerprint,
        "tokenizer": announce.tokenizer_key(tokenizer),
        "steps": plan_run(config).steps,
    }


def _refuse_another(run: RunFolder, record: dict[str, Any]) -> None:
    if changed := run.differences({key: plain_json(value) for key, value in record.items()}):
        raise UserError(
            f"the folder holds a run that differs in {', '.join(changed)}",
            where=str(run.path),
            mend="train into another folder, or take the settings in its run.json",
        )


class _Run:
    """The parts of one run, put together in order."""

    def __init__(
        self,
        config: TrainConfig,
        model: ModelConfig,
        mesh: Mesh,
        ranks: Ranks,
        monitor: MonitorConfig,
        dataset: Path,
        tokenizer: Path,
        seed: int,
        run: RunFolder,
        reporter: Reporter,
        recipe_text: str,
        storage: DatasetConfig,
    ) -> None:
        self.config, self.monitor, self.seed, self.run, self.reporter = config, monitor, seed, run, reporter
        self.mesh, self.ranks, self.device = mesh, ranks, mesh.device
        self.dataset, self.storage = TokenDataset.open(dataset), storage
        self.tokenizer = Tokenizer.load(tokenizer)
        self.dataset.check_tokenizer(self.tokenizer)
        self.objective = build_objective(config.objective, self.tokenizer, self.dataset.split("train").domains, seed)
        self.model = model.with_vocab_size(self.tokenizer.vocab_size)
        self.plan = mixed(plan_run(config), config, self.dataset.split("train"), reporter)
        self._check_lengths()
        self.precision, precision_why = choose_precision(config.precision, self.device, self.model.hidden_size)
        self.micro_batch, micro_why = estimate.choose_micro_batch(
            mesh.config,
            self.model,
            self.plan,
            config,
            free_bytes=-int(mesh.maximum(-devices.free_memory_bytes(self.device) / _sharing(self.device))),
            device_type=self.device.type,
            precision=self.precision,
        )
        self.memory = WhatFits(run, self._place(), reporter)
        fits = ranks.from_first(self.memory.known().micro_batch)
        if fits is not None and fits < self.micro_batch:
            self.micro_batch, micro_why = fits, f"more ran out of memory before ({REMEMBERED} in the run's folder)"
        self.choices = announce.Choices(
            self.device, self.precision, precision_why, self.micro_batch, micro_why, mesh.config
        )
        ranks.on_first(lambda: self._settle(recipe_text))
        self.ledger = ranks.on_first(self._open_ledger)
        self.order = StepOrder(self.dataset.split("train").sizes, seed=seed, segments=self.ledger.step_segments())
        self.store = CheckpointStore(
            run.checkpoints_dir,
            run_id=run.run_id,
            keep=config.checkpoint.keep,
            permanent_every=config.checkpoint.permanent_every,
            ephemeral=self._ephemeral_folder(),
            warn=self._warn,
            ranks=Ranks.new(SAVE_TIMEOUT_SECONDS),
        )

    def _ephemeral_folder(self) -> Path | None:
        """A folder of this run's own below `ephemeral_dir`, which other runs may use as well."""
        folder = self.config.checkpoint.ephemeral_dir
        if folder is None:
            return None
        key = sha256_bytes(str(self.run.path.resolve()).encode())[:8]
        return Path(folder).expanduser() / f"{self.run.run_id}-{key}"

    def _open_ledger(self) -> RunLedger:
        ledger = RunLedger(self.run.ledger_path)
        return record_plan(ledger, self.plan, seed=self.seed, dataset_fingerprint=self.dataset.fingerprint)

    def _check_lengths(self) -> None:
        longest = max(segment.seq_len for segment in self.plan.segments)
        if longest > self.model.max_position_embeddings:
            raise RecipeError(
                f"samples of {longest:,} tokens exceed the model's {self.model.max_position_embeddings:,} positions",
                where="train.seq_len",
                mend=f"set model.max_position_embeddings to {longest:,}, or shorten train.seq_len",
            )
        lengths = {f"the sample length of phase {segment.phase}": segment.seq_len for segment in self.plan.segments}
        check_divisible(self.model, self.mesh.config, lengths)

    def _settle(self, recipe_text: str) -> None:
        """Write down what is trained on what, or check that it is the same as before."""
        record = _record(self.config, self.model, self.seed, self.dataset, self.tokenizer)
        if not self.run.record:
            self.tokenizer.save(self.run.tokenizer_path)
            if recipe_text:
                (self.run.path / "recipe.yaml").write_text(recipe_text, "utf-8")
            created = time.strftime("%Y-%m-%dT%H:%M:%S%z")
            facts = announce.facts(self.config, self.model, self.plan)
            self.run.write_json("run.json", {**record, "run": self.run.run_id, "created": created, "facts": facts})
            return
        _refuse_another(self.run, record)

    def go(self, callbacks: Sequence[Callback]) -> RunFolder:
        announce.describe(self.reporter, self.config, self.model, self.plan, self.choices, self.order)
        if (shared := context_decision(self.mesh, self.model)) is not None:
            self.reporter.decide(*shared)
        self.ranks.on_first(self._check_disk)
        self.store.clean()
        self.ranks.on_first(self._clean)
        seed_everything(self.seed)
        if self.device.type == "cpu":
            keep_freed_memory()
        module = TrainModule.build(
            self.model,
            self.config,
            mesh=self.mesh,
            precision=self.precision,
            micro_batch=self.micro_batch,
            seed=self.seed,
        )
        data = RunData(
            self.dataset,
            self.order,
            document_mask=self.config.document_mask,
            rank=self.mesh.coordinate("dp"),
            ranks=self.mesh.size("dp"),
            objective=self.objective,
            cache_ahead=self.storage.cache_read_ahead_steps,
        )
        resuming = Resuming(
            self.run,
            self.ledger,
            self.store,
            data,
            self.plan,
            self.ranks,
            self.reporter,
            partial(self._computes_with, module),
        )
        trainer = Trainer(
            plan=self.plan,
            module=module,
            batches=data,
            run=self.run,
            ledger=self.ledger,
            callbacks=self._callbacks(callbacks, data),
            reporter=self.reporter,
            ranks=self.ranks,
            restore=resuming.go_back,
        )
        module.fitting.tell = lambda *found: self.memory.smaller(trainer.step + 1, *found)
        with devices.determinism(self.config.deterministic, self.device), matrix_products(self.precision):
            if self.config.dry_run:
                seconds = announce.dry_run(module, self.plan)
            resuming.start(trainer)
            if self.config.dry_run:
                announce.expect(self.reporter, module, self.plan, trainer.step, seconds)
            started = time.monotonic()
            trainer.fit()
        self.run.event("finished", step=trainer.step, seconds=round(time.monotonic() - started, 1))
        self.reporter.info(f"trained {trainer.step:,} steps, {trainer.tokens:,} tokens; run folder {self.run.path}")
        return self.run

    def _computes_with(self, module: TrainModule) -> dict[str, Any]:
        """What a bitwise repetition needs to be the same."""
        return {
            **self._place(),
            "parallel": self.mesh.config.axes,
            "threads": torch.get_num_threads(),
            "precision": self.precision,
            "micro_batch": module.micro_batch,  # a trial may have found that less fits
        }

    def _place(self) -> dict[str, str]:
        """Where a micro-batch fits or does not."""
        return {"device": self.device.type, "layout": self.mesh.config.describe()}

    def _callbacks(self, injected: Sequence[Callback], data: RunData) -> list[Callback]:
        if self.config.sampling.every and not any(isinstance(c, SamplingCallback) for c in injected):
            self.reporter.warn(
                "train.sampling.every is set, but no sampler came with the run: pass a SamplingCallback in callbacks"
            )
        windows = validation_windows(
            self.dataset,
            self.plan.segments[0].seq_len,
            self.config.validation.windows_per_domain,
            document_mask=self.config.document_mask,
            objective=self.objective if self.config.objective.name == "mlm" else None,
        )
        if not windows:
            self.reporter.decide("no validation during the run", "the dataset has no validation split")
        metrics = MetricsCallback(self.monitor, self.plan.steps)
        checkpoints = CheckpointCallback(self.config.checkpoint, self.store, metrics, self.dataset.fingerprint)
        validation = ValidationCallback(self.config.validation, windows)
        train, mixture = self.dataset.split("train"), self.plan.segments[0].mixture
        guesses = self.ranks.on_first(
            lambda: guess_losses(train, vocab_size=self.tokenizer.vocab_size, mixture=mixture)
        )
        detection = DetectionCallback(self.monitor.detectors, guesses)
        guards: list[Callback] = [detection]
        if self.config.recovery.enabled:
            guards.append(RecoveryCallback(self.config.recovery, detection, data, self.store))
        collectors = CollectorsCallback(self.monitor, self.memory)
        return [PhaseCallback(), validation, *injected, collectors, *guards, metrics, checkpoints]

    def _check_disk(self) -> None:
        size = estimate.state_size(self.model, self.config).checkpoint
        config = self.config.checkpoint
        copies = config.keep + 1
        if config.permanent_every:
            copies += self.plan.steps // config.permanent_every
        more = max(1, copies - len(self.run.checkpoints()))
        what = f"keeping {more} more checkpoints" if more > 1 else "one more checkpoint"
        free_bytes_check(self.run.path, more * size, what)
        self.reporter.decide(*announce.saving(size, config))

    def _clean(self) -> None:
        """Remove what a kill left half-written."""
        for path in (*self.run.path.glob(f"{TEMP_PREFIX}*"), *self.run.checkpoints_dir.glob(f"{TEMP_PREFIX}*")):
            path.unlink(missing_ok=True)

    def _warn(self, message: str) -> None:
        self.reporter.warn(message)
        self.run.event("warning", message=message)
