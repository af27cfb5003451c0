"""Activation checkpointing: what is kept for the backward pass and what is computed again.

In: the blocks of a model. Out: the same blocks; their parameters keep their names, because only `forward` is wrapped.

    checkpoint_blocks(model.model.layers.values(), "selective")

`full` keeps a block's inputs only (about a third more compute). `selective` also keeps the results of matrix products
and attention, which are the costly ones, and recomputes norms, activations and rotations (Korthikanti et al. 2022,
arXiv 2205.05198, in the per-operation form of torchtitan).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

_KEPT_NAMES = {
    "aten::mm",
    "aten::addmm",
    "aten::bmm",
    "aten::_scaled_mm",
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_cudnn_attention",
    "torch_attn::_varlen_attn",
}
"""Operations whose results `selective` keeps; so are the project's own attention operators."""

_OWN_NAMESPACE = "headwater::"


def _policy(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    name = operation.name().split(".")[0] if isinstance(operation, torch._ops.OpOverload) else ""
    kept = name in _KEPT_NAMES or name.startswith(_OWN_NAMESPACE)
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


def checkpoint_blocks(blocks: Iterable[nn.Module], mode: Literal["none", "selective", "full"]) -> None:
    """Wrap the `forward` of every block; "none" leaves them alone."""
    for block in blocks:
        if mode == "full":
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        elif mode == "selective":
            contexts = partial(create_selective_checkpoint_contexts, _policy)
            block.forward = partial(checkpoint, block.forward, use_reentrant=False, context_fn=contexts)
