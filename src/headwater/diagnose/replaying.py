"""A step of a run done again, from the nearest checkpoint, by the trainer's own code; nothing in the run changes.

In: a run's folder, its dataset, a step. Out: what it gives now beside what was recorded, what other batches and other
weights give, and every document's part in it. One process on this machine, whatever the run's layout was: the replay is
bitwise where the run was one process with as many threads on the same device.

    measured = replay_step(RunFolder.open("run"), 412, TokenDataset.open("dataset"))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from headwater.core.errors import CorruptArtifactError, InputError, UserError
from headwater.core.progress import SILENT, Reporter
from headwater.dataset import StepOrder, TokenDataset
from headwater.dataset.trace import DocumentPart, SampleTrace, trace_step
from headwater.diagnose.autopsy import Document, Measured, shares
from headwater.model import ModelConfig
from headwater.model.loss import IGNORE
from headwater.parallel.mesh import Mesh
from headwater.parallel.precision import Precision, matrix_products
from headwater.tokenizer import Tokenizer
from headwater.train import devices
from headwater.train.batch import Batch
from headwater.train.checkpoint_format import read_tensors
from headwater.train.checkpoint_load import load_checkpoint
from headwater.train.checkpoint_targets import targets_for
from headwater.train.config import TrainConfig
from headwater.train.data import RunData
from headwater.train.ledger import LedgerEntry, RunLedger
from headwater.train.objective import build_objective
from headwater.train.outcome import Reading
from headwater.train.phases import plan_run
from headwater.train.rng import seed_everything
from headwater.train.run_folder import CheckpointRef, RunFolder
from headwater.train.train_module import TrainModule
from headwater.train.trainer import RNG

OTHERS = 4
"""Batches of following steps that the step's is compared with."""
USUAL = 32
"""Recorded steps before it that say what is usual."""
MAX_REPLAY = 1000
MAX_DOCUMENTS = 512
"""Parts of documents whose gradients are measured, one backward pass each, worst samples first."""


def replay_step(
    run: RunFolder, step: int, dataset: TokenDataset, *, max_replay: int = MAX_REPLAY, reporter: Reporter = SILENT
) -> Measured:
    """Do step `step` again. `max_replay`: most steps to train again before it.

    Raises UserError for a step outside the run, InputError if no checkpoint is near enough.
    """
    ledger, undone = ledger_of(run.ledger(), step)
    last = int(run.record["steps"])
    if not 1 <= step <= last:
        raise UserError(f"step {step} is outside this run", where=str(run.path), mend=f"give 1 to {last}")
    replay = _Replay(run, ledger, dataset, step)
    with devices.determinism(True, replay.device), matrix_products(replay.precision):
        return replay.measure(step, undone=undone, max_replay=max_replay, reporter=reporter)


def ledger_of(ledger: RunLedger, step: int) -> tuple[RunLedger, bool]:
    """The ledger as it was when a step was done, and whether a rewind has undone the step since: of a step done more
    than once, the first time counts, as that is the one that went wrong."""
    rewind = _undoing(ledger, step)
    return (ledger, False) if rewind is None else (ledger.as_of(rewind.number), True)


def _undoing(ledger: RunLedger, step: int) -> LedgerEntry | None:
    """The first rewind that went back behind a step."""
    return next((entry for entry in ledger.rewinds() if entry.data["to"] < step <= entry.step), None)


def recorded(run: RunFolder, step: int) -> tuple[float | None, float | None, tuple[float, ...]]:
    """Loss and norm of the step, and losses of the steps before, as they were recorded; None for what is not known any
    more. Those of undone steps are in the events of the rewind; what the record has of them is of the next time."""
    rows: dict[int, dict[str, Any]] = {int(row["step"]): row for row in run.metrics() if _plain(row.get("step"))}
    ledger = run.ledger()
    rewind = _undoing(ledger, step)
    if rewind is not None:
        ledger = ledger.as_of(rewind.number)
        rows = {number: row for number, row in rows.items() if number <= rewind.data["to"]}
        for event in run.events():
            kind = event.get("event")
            if kind == "recovery" and event.get("step") == step and min(event.get("entries") or (0,)) <= rewind.number:
                rows[step] = event
            if kind == "rewound" and event["step"] + 1 == rewind.step:
                rows |= {int(row["step"]): row for row in event["undone"]}
                break
    before = [s for s in range(max(1, step - USUAL), step) if s in rows and not ledger.held(s)]
    usual: list[Any] = [rows[s].get("loss") for s in before]
    row = rows.get(step, {})
    return _number(row.get("loss")), _number(row.get("grad_norm")), tuple(v for v in usual if _plain(v))


class _Replay:
    """The run's parts, put together for one process."""

    def __init__(self, run: RunFolder, ledger: RunLedger, dataset: TokenDataset, step: int) -> None:
        record = run.record
        self.run, self.ledger, self.dataset = run, ledger, dataset
        self.config = TrainConfig.model_validate(record["train"])
        self.plan = plan_run(self.config)
        self.tokenizer = Tokenizer.load(run.tokenizer_path)
        self.facts = facts_of(run, step)
        self.notes: list[str] = []
        self.device = devices.choose_device(str(self.facts.get("device", "auto")) if self._has_device() else "auto")
        self.precision: Precision = self.facts.get("precision", "fp32")
        self.order = StepOrder(dataset.split("train").sizes, seed=int(record["seed"]), segments=ledger.step_segments())
        if self.device.type == "cpu" and self.facts.get("threads"):
            torch.set_num_threads(int(self.facts["threads"]))
        self.micro_batch = int(self.facts.get("micro_batch") or self.order.segment(step).global_batch)
        seed_everything(int(record["seed"]))
        self.module = TrainModule.build(
            ModelConfig.model_validate(record["model"]),
            self.config,
            mesh=Mesh.single(self.device),
            precision=self.precision,
            micro_batch=self.micro_batch,
            seed=int(record["seed"]),
        )
        self.rope_theta = self.module.model_config.rope_theta
        self.data = RunData(
            dataset,
            self.order,
            document_mask=self.config.document_mask,
            objective=build_objective(
                self.config.objective, self.tokenizer, dataset.split("train").domains, int(record["seed"])
            ),
        )

    def _has_device(self) -> bool:
        return self.facts.get("device") != "cuda" or torch.cuda.is_available()

    def measure(self, step: int, *, undone: bool, max_replay: int, reporter: Reporter) -> Measured:
        refs = self._checkpoints(step)
        begin = self._load(refs)
        if step - 1 - begin > max_replay:
            raise InputError(
                f"the nearest checkpoint before step {step:,} is {step - 1 - begin:,} steps before it",
                where=str(self.run.checkpoints_dir),
                mend="give --max-replay to train them again (checkpoints are kept by train.checkpoint.permanent_every)",
            )
        later = [s for s in range(step + 1, step + 1 + OTHERS) if s <= self.plan.steps]
        earlier_step, earlier, earlier_others = self._earlier(step, begin, refs, later)
        if step - 1 > begin:
            reporter.info(f"training steps {begin + 1:,} to {step - 1:,} again")
        for number, batch in enumerate(self.data.batches(begin + 1, step - 1), start=begin + 1):
            self._train(number, batch)
        (batch,) = self.data.batches(step, step)
        self._set_rope(step)
        reading = self._look(step, batch)
        others = tuple(self._loss(s) for s in later)
        then, norm, usual = recorded(self.run, step)
        here = {
            "device": self.device.type, "threads": torch.get_num_threads(), "precision": self.precision,
            "layout": self.module.mesh.config.describe(), "micro_batch": self.micro_batch,
        }  # fmt: skip
        differs = [f"{k} {self.facts.get(k)} then, {v} now" for k, v in here.items() if self.facts.get(k) != v]
        if differs:
            self.notes.append(f"not bitwise what it was: {', '.join(differs)}")
        return Measured(
            run=str(self.run.path), step=step, checkpoint=begin, recorded=then, recorded_norm=norm,
            replayed=reading.loss, replayed_norm=reading.grad_norm, others=others, earlier_step=earlier_step,
            earlier=earlier, earlier_others=earlier_others, usual=usual, same_machine=not differs, undone=undone,
            documents=self._documents(step, batch), notes=tuple(self.notes),
        )  # fmt: skip

    # Weights.

    def _checkpoints(self, step: int) -> list[CheckpointRef]:
        """Whole checkpoints from before the step, on its way, the newest first."""
        found = []
        for ref in self.run.checkpoints():
            try:
                head = str(ref.manifest().get("ledger"))
                if ref.step < step and self.ledger.leads_on_from(ref.step, head):
                    load_checkpoint(ref)
                    found.append(ref)
            except CorruptArtifactError as error:
                self.notes.append(f"checkpoint {ref.name} is damaged and passed over: {error.what}")
        if not found:
            self.notes.append("no checkpoint from before the step is left: replayed from the run's first step")
        return sorted(found, key=lambda ref: -ref.step)

    def _load(self, refs: Sequence[CheckpointRef]) -> int:
        """The state of the first of some checkpoints, or that of a new run; its step."""
        if not refs:
            return 0
        state = load_checkpoint(refs[0]).state
        tensors = targets_for(refs[0].path, self.module.parameters)
        read_tensors(refs[0].path, tensors)
        self.module.load_state_tensors({name: t for name, t in tensors.items() if not name.startswith(RNG)})
        return int(state["step"])

    def _earlier(
        self, step: int, begin: int, refs: list[CheckpointRef], later: list[int]
    ) -> tuple[int | None, float | None, tuple[float, ...]]:
        """The step's batch, and others, under weights from before those of the step: of the checkpoint loaded, or, if
        that is the step's own beginning, of the one before it."""
        if begin < step - 1:
            return begin, self._loss(step), tuple(self._loss(s) for s in later)
        if len(refs) < 2:
            return None, None, ()
        there = self._load(refs[1:])
        found = self._loss(step), tuple(self._loss(s) for s in later)
        self._load(refs)
        return there, *found

    def _train(self, step: int, batch: Batch) -> None:
        self._set_rope(step)
        held = self.ledger.held(step)
        factor = self.plan.lr_factor(step) * self.ledger.lr_factor(step)
        self.module.train_step(step, batch, lr_factor=factor, gate=lambda _: not held)

    def _set_rope(self, step: int) -> None:
        """The step's own, and the model's where it has none: steps of other phases are looked at in between."""
        theta = self.plan.segment(step).rope_theta or self.rope_theta
        if theta != self.module.model_config.rope_theta:
            self.module.set_rope_theta(theta)

    # Losses.

    def _look(self, step: int, batch: Batch) -> Reading:
        """What the step says just before its update, which is not made."""
        seen: list[Reading] = []

        def gate(reading: Reading) -> bool:
            seen.append(reading)
            return False

        outcome = self.module.train_step(step, batch, lr_factor=1.0, gate=gate)
        return seen[0] if seen else Reading(step, outcome.loss, outcome.grad_norm)  # an overflow in fp16 asks nobody

    def _loss(self, step: int) -> float:
        (batch,) = self.data.batches(step, step)
        self._set_rope(step)
        with self.module.evaluation(averaged=False):
            nats, predicted, _ = self.module.evaluate(batch)
        return nats / max(1, predicted)

    # Documents.

    def _documents(self, step: int, batch: Batch) -> tuple[Document, ...]:
        self._set_rope(step)
        trace = trace_step(self.dataset.split("train"), self.order, step)
        with self.module.evaluation(averaged=False):
            losses = self.module.sample_losses(batch)
        rows = sorted(range(batch.rows), key=lambda row: -losses[row] if losses[row] == losses[row] else 0.0)
        whole = max(1, batch.predicted_tokens)
        measured: list[tuple[SampleTrace, DocumentPart, int, Reading]] = []
        for row in rows:
            place = 0
            for part in trace.samples[row].documents:
                piece = _only(batch, row, place, place + part.tokens)
                place += part.tokens
                if piece.predicted_tokens and len(measured) < MAX_DOCUMENTS:
                    measured.append((trace.samples[row], part, piece.predicted_tokens, self._look(step, piece)))
        parts = sum(len(sample.documents) for sample in trace.samples)
        if len(measured) == MAX_DOCUMENTS < parts:
            self.notes.append(
                f"of {parts:,} parts of documents, those of the worst samples are measured: {MAX_DOCUMENTS}"
            )
        nats = shares([reading.loss * count for *_, count, reading in measured])
        norms = shares([reading.grad_norm * count for *_, count, reading in measured])
        documents = [
            Document(
                id=part.id, source=part.source, lang=part.lang, domain=sample.domain, sample=sample.sample,
                first=part.first, tokens=part.tokens, loss=reading.loss, token_share=count / whole,
                loss_share=loss, gradient_share=norm,
                text=self._text(sample, part),
            )
            for (sample, part, count, reading), loss, norm in zip(measured, nats, norms, strict=True)
        ]  # fmt: skip
        return tuple(sorted(documents, key=lambda document: -document.weight))

    def _text(self, sample: SampleTrace, part: DocumentPart) -> str:
        """What the model was shown of a document."""
        stream = self.dataset.split("train").stream(sample.domain)
        number = next(n for n in stream.find(part.id) if stream.document(n).source == part.source)
        start = stream.document(number).start + part.first
        tokens = stream.window(start, start + part.tokens).tokens
        return self.tokenizer.decode([int(token) for token in tokens])


def _only(batch: Batch, row: int, start: int, stop: int) -> Batch:
    """One row, of which nothing is predicted outside start..stop."""
    piece = batch.part(row, row + 1, torch.device("cpu"))
    targets = torch.full_like(piece.targets, IGNORE)
    targets[:, start:stop] = piece.targets[:, start:stop]
    return replace(piece, targets=targets, domains=None)  # the counts of a whole step say nothing of a piece


def facts_of(run: RunFolder, step: int) -> dict[str, Any]:
    """What the process that did the step computed with."""
    facts: dict[str, Any] = {}
    for event in run.events():
        kind, at = event.get("event"), int(event.get("step") or 0)
        if kind in ("started", "resumed") and at < step:
            facts = event
        elif kind == "out_of_memory" and at <= step and facts:  # from here on in smaller pieces
            facts = {**facts, "micro_batch": event["micro_batch"]}
    return facts


def _plain(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: Any) -> float | None:
    if isinstance(value, str):
        return {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}.get(value)
    return float(value) if _plain(value) else None
