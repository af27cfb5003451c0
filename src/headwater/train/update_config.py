"""What of the `train:` section shapes an update: the optimizer and its learning rate over steps. No torch.

OptimizerConfig(name="muon", lr=0.02), ScheduleConfig(name="wsd", warmup_steps=20)
"""

from __future__ import annotations

from typing import Literal

from headwater.core.config import Section, field

DecayShape = Literal["linear", "cosine", "one_minus_sqrt", "exponential"]


class OptimizerConfig(Section):
    """The update rule and its constants."""

    name: Literal["adamw", "muon"] = field("adamw")
    """`adamw`, or `muon`: orthogonalised momentum for hidden matrices and AdamW for embeddings, head and norms."""

    lr: float = field(3e-4, aliases=("learning_rate", "max_lr", "peak_lr"), gt=0)
    """Peak learning rate, of Muon's matrices with `muon`, else of everything."""

    adamw_lr: float | None = field(None, gt=0)
    """Peak learning rate of the parameters AdamW updates under `muon`; default: `lr` with `muon_scale: rms` (updates of
    both then have the same size), 0.15 x `lr` otherwise."""

    beta1: float = field(0.9, aliases=("adam_beta1",), ge=0, lt=1)
    """AdamW: decay of the mean of gradients."""

    beta2: float = field(0.95, aliases=("adam_beta2",), ge=0, lt=1)
    """AdamW: decay of the mean of squared gradients."""

    eps: float = field(1e-8, aliases=("adam_eps", "adam_epsilon"), gt=0)
    """AdamW: added to the root of the second moment."""

    weight_decay: float = field(0.1, aliases=("wd",), ge=0)
    """Decoupled weight decay, of matrices only; norms and biases are never decayed."""

    decay_embeddings: bool = field(True)
    """Also decay the embedding and the head (OLMo 2 leaves the embedding out)."""

    momentum: float = field(0.95, aliases=("muon_momentum",), ge=0, lt=1)
    """Muon: momentum of the gradient before orthogonalisation."""

    nesterov: bool = field(True)
    """Muon: Nesterov momentum."""

    newton_schulz_steps: int = field(5, aliases=("ns_steps",), ge=1, le=20, unit="iterations")
    """Muon: Newton-Schulz iterations."""

    muon_scale: Literal["rms", "spectral"] = field("spectral")
    """Muon: size of an update. `spectral` = sqrt(max(1, rows/columns)) (Jordan et al.); `rms` =
    0.2 sqrt(max(rows, columns)), AdamW's typical size, so AdamW's learning rates carry over (Moonlight)."""


class ScheduleConfig(Section):
    """Learning rate over steps, as a factor of the peak."""

    name: Literal["cosine", "wsd", "linear", "constant"] = field(
        "cosine", aliases=("lr_scheduler_type", "lr_decay_style")
    )
    """Shape after the warm-up: `cosine` or `linear` to the floor, `wsd` (stable, then decay) or `constant`."""

    warmup_steps: int = field(0, aliases=("num_warmup_steps", "lr_warmup_iters", "warmup_iters"), ge=0, unit="steps")
    """Linear warm-up from 0."""

    min_ratio: float = field(0.1, aliases=("min_lr_ratio",), ge=0, le=1, unit="ratio")
    """Floor of the schedule as a share of the peak."""

    min_lr: float | None = field(None, ge=0)
    """Floor as an absolute learning rate (in the terms of `optimizer.lr`); takes the place of `min_ratio`."""

    decay_ratio: float = field(0.2, gt=0, le=1, unit="ratio")
    """`wsd`: share of the steps spent decaying, at the end."""

    decay_shape: DecayShape = field("one_minus_sqrt")
    """`wsd`: shape of the decay."""
