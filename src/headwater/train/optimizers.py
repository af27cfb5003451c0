"""Optimizers from configuration: which parameter is updated how, and the state as tensors by name.

In: an `OptimizerConfig` and a model. Out: one `torch.optim.Optimizer`. Its state is read and written as flat
`{parameter name}/{slot}` tensors, so a checkpoint does not depend on the order or grouping of parameters.

    optimizer = build_optimizer(OptimizerConfig(name="muon", lr=0.02), model)
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from headwater.parallel.slices import shaped_like
from headwater.parallel.tied import is_copy
from headwater.train.config import OptimizerConfig
from headwater.train.muon import MuonAdamW

SPECTRAL_ADAMW_RATIO = 0.15
"""AdamW's share of Muon's learning rate with `muon_scale: spectral`: 0.003 beside 0.02, the pair found to work for a
3M-parameter model on Python text."""


def clean_name(name: str) -> str:
    """A parameter's name without what torch.compile and checkpoint wrappers put into it."""
    return name.replace("_orig_mod.", "").replace("_checkpoint_wrapped_module.", "")


def named_parameters(*models: nn.Module) -> dict[str, nn.Parameter]:
    """Trainable parameters of a model, or of some stages of one, by clean name; a tied one appears once: a last stage's
    copy of an embedding, which follows it, does not."""
    return {
        name: parameter
        for model in models
        for name, parameter in ((clean_name(name), parameter) for name, parameter in model.named_parameters())
        if parameter.requires_grad and not is_copy(name, model)
    }


def embedding_names(*models: nn.Module) -> set[str]:
    """Names of the parameters that look tokens up or score them: embeddings and the output head."""
    modules = [m for model in models for m in model.modules()]
    ids = {id(m.weight) for m in modules if isinstance(m, nn.Embedding)}
    for model in models:
        with suppress(AssertionError):  # a stage in the middle of a pipeline has no head
            ids.add(id(getattr(model, "lm_head_weight", None)))
    return {name for name, parameter in named_parameters(*models).items() if id(parameter) in ids}


def adamw_lr(config: OptimizerConfig) -> float:
    """Peak learning rate of the parameters AdamW updates."""
    if config.name == "adamw":
        return config.lr
    if config.adamw_lr is not None:
        return config.adamw_lr
    return config.lr if config.muon_scale == "rms" else config.lr * SPECTRAL_ADAMW_RATIO


def build_optimizer(config: OptimizerConfig, *models: nn.Module, bf16: bool = False) -> torch.optim.Optimizer:
    """The optimizer of a model, or of some stages of one.

    Groups: hidden matrices, embeddings and head, and everything with fewer than two dimensions (never decayed).

    `bf16`: let Muon orthogonalise in bf16 (the state stays as the parameters are).
    """
    parameters, embeddings = named_parameters(*models), embedding_names(*models)
    matrices = [p for name, p in parameters.items() if p.ndim >= 2 and name not in embeddings]
    lookups = [p for name, p in parameters.items() if name in embeddings]
    rest = [p for name, p in parameters.items() if p.ndim < 2 and name not in embeddings]
    slow = adamw_lr(config)
    adam: dict[str, Any] = {"lr": slow, "betas": (config.beta1, config.beta2), "eps": config.eps}
    groups: list[dict[str, Any]] = [
        {**adam, "params": lookups, "weight_decay": config.weight_decay if config.decay_embeddings else 0.0},
        {**adam, "params": rest, "weight_decay": 0.0},
    ]
    if config.name == "adamw":
        groups.insert(0, {**adam, "params": matrices, "weight_decay": config.weight_decay})
    else:
        groups[1]["params"] += [p for p in matrices if p.ndim != 2]
        muon = {
            "params": [p for p in matrices if p.ndim == 2],
            "kind": "muon",
            "lr": config.lr,
            "weight_decay": config.weight_decay,
            "momentum": config.momentum,
            "nesterov": config.nesterov,
            "newton_schulz_steps": config.newton_schulz_steps,
            "scale": config.muon_scale,
            "bf16": bf16,
        }
        groups.insert(0, muon)
    groups = [group for group in groups if group["params"]]
    optimizer: torch.optim.Optimizer
    optimizer = torch.optim.AdamW(groups, fused=True) if config.name == "adamw" else MuonAdamW(groups)
    for group in optimizer.param_groups:
        group["peak_lr"] = group["lr"]
    return optimizer


def set_lr_factor(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Set every group's learning rate to its peak times `factor`."""
    for group in optimizer.param_groups:
        group["lr"] = group["peak_lr"] * factor


def state_tensors(optimizer: torch.optim.Optimizer, parameters: dict[str, nn.Parameter]) -> dict[str, Tensor]:
    """The optimizer's state as `{name}/{slot}` tensors; no copies. Empty before the first step."""
    return {
        f"{name}/{slot}": value
        for name, parameter in parameters.items()
        for slot, value in optimizer.state.get(parameter, {}).items()
    }


def load_state_tensors(
    optimizer: torch.optim.Optimizer, parameters: dict[str, nn.Parameter], tensors: dict[str, Tensor]
) -> None:
    """Put back what `state_tensors` gave, sharded as its parameter or whole; slots move to the parameter's device.

    KeyError for an unknown name.
    """
    optimizer.state.clear()
    for key, tensor in tensors.items():
        name, _, slot = key.rpartition("/")
        optimizer.state[parameters[name]][slot] = shaped_like(tensor, parameters[name])
