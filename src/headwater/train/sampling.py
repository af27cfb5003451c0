"""Texts generated while training, written to `samples.jsonl`.

In: a sampler, a function that continues prompts with the model as it is; generation lives above training, so whoever
starts the run brings it. Out: `{step, prompt, text}` lines. The random state is put back afterwards: a run with samples
and one without give the same weights.

    train_run(..., callbacks=[SamplingCallback(config.sampling, sampler)])
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import nn

from headwater.core.files import gib
from headwater.core.jsonl import JsonlLog
from headwater.train.callbacks import Callback, due
from headwater.train.config import SamplingConfig
from headwater.train.devices import free_memory_bytes
from headwater.train.rng import preserved_rng
from headwater.train.train_module import StepOutcome, TrainModule
from headwater.train.trainer import Trainer

DEFAULT_TIMES = 5


class Sampler(Protocol):
    """Continues prompts. `seed` makes it repeatable; returns one text a prompt, without the prompt."""

    def __call__(self, model: nn.Module, prompts: Sequence[str], max_tokens: int, seed: int) -> list[str]: ...


class SamplingCallback(Callback):
    """Samples every so many steps and at the end, under averaged weights where the run keeps them."""

    name = "sampling"

    def __init__(self, config: SamplingConfig, sampler: Sampler) -> None:
        self._config = config
        self._sampler = sampler
        self._said = False

    def after_step(self, trainer: Trainer, outcome: StepOutcome) -> None:
        every = self._config.every if self._config.every is not None else max(1, trainer.steps // DEFAULT_TIMES)
        if not due(trainer.step, every, trainer.steps):
            return
        if self._impossible(trainer):
            return
        started = time.perf_counter()
        module = trainer.module
        with preserved_rng(), module.inference(averaged=True) as model, torch.no_grad():
            if model is not None:
                self._write(trainer, self._sampler(model, self._config.prompts, self._config.max_tokens, trainer.step))
        trainer.spent["validation_seconds"] = time.perf_counter() - started + trainer.spent.get("validation_seconds", 0)

    def _write(self, trainer: Trainer, texts: Sequence[str]) -> None:
        path = trainer.run.samples_path
        with trainer.failures.kept(path.name), JsonlLog(path) as log:
            pairs = zip(self._config.prompts, texts, strict=True)
            log.append(*({"step": trainer.step, "prompt": prompt, "text": text} for prompt, text in pairs))

    def _impossible(self, trainer: Trainer) -> bool:
        """Whether there is a reason not to sample in this layout, said once."""
        reason = inference_obstacle(trainer.module)
        if reason and not self._said:
            self._said = True
            trainer.reporter.warn(f"no samples during the run: {reason}")
        return bool(reason)


def inference_obstacle(module: TrainModule) -> str:
    """Why the whole model cannot be brought together on rank 0; "" if it can. Collective."""
    if module.mesh.world == 1:
        return ""
    if module.mesh.size("pp") > 1:
        return "its layers are spread over a pipeline"
    needed = 4 * module.model_config.parameter_count(padded=True).total
    free = free_memory_bytes(module.device)
    if module.mesh.maximum(float(module.mesh.rank == 0 and free < needed)):
        return f"rank 0 has no room for the {gib(needed)} of all weights beside the training"
    return ""
