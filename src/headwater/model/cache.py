"""Keys and values of tokens already seen, for generation.

In: for each forward pass the positions `[rows, new]` of its tokens. A token at position p is stored in slot p, and a
query at position p sees slots 0 to p: so rows may have different lengths, padding on the right is stored but never
seen and then overwritten, and nothing depends on what else is in the batch.

    cache = KVCache(config, rows=2); hidden = model(tokens, positions, cache=cache)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from headwater.model.attention import attend, scaled_dot_product
from headwater.model.config import ModelConfig

GROWTH_TOKENS = 256
"""Slots are added in steps of this, so that a cache is copied rarely and holds little more than it needs."""


class AttentionCache(Protocol):
    """What a forward pass asks of a cache: other storage (paged, quantised) or other masks need only this."""

    def begin(self, positions: Tensor) -> None:
        """Take the positions [rows, new] of the forward pass that begins."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend from the new tokens' q [rows, new, heads, head_dim] (scaled) with their k and v [rows, new, kv_heads,
        head_dim]; returns [rows, new, heads, head_dim]."""


class KVCache:
    """Keys and values, `[rows, slots, kv_heads, head_dim]` a layer.

    `capacity` is how many slots to make at once (it grows when needed).
    """

    def __init__(self, config: ModelConfig, rows: int, *, capacity: int = 0) -> None:
        self.rows = rows
        self._shape = (config.num_key_value_heads, config.head_dim)
        self._capacity = capacity
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}
        self._positions: Tensor | None = None
        self._mask: Tensor | None = None
        self._slots = 0

    @property
    def bytes(self) -> int:
        """Memory held."""
        tensors = (*self._keys.values(), *self._values.values())
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def begin(self, positions: Tensor) -> None:
        """Take the positions [rows, new] of the forward pass that begins."""
        self._positions = positions
        self._slots = int(positions.max()) + 1
        if not self._keys and bool((positions == torch.arange(positions.shape[1], device=positions.device)).all()):
            self._mask = None  # a first pass from position 0: plain causal attention over the new tokens
        else:
            slots = torch.arange(self._slots, device=positions.device)
            self._mask = slots <= positions[:, None, :, None]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store k and v [rows, new, kv_heads, head_dim] of a layer and attend from q [rows, new, heads, head_dim]
        (scaled) to all that is seen. Returns [rows, new, heads, head_dim]."""
        assert self._positions is not None, "begin() comes first"
        self._reserve(layer, k)
        keys, values = self._keys[layer], self._values[layer]
        index = torch.arange(self.rows, device=k.device)[:, None]
        keys[index, self._positions] = k
        values[index, self._positions] = v
        if self._mask is None:
            return attend(q, k, v, None)
        return scaled_dot_product(q, keys[:, : self._slots], values[:, : self._slots], self._mask)

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order; a row may be named more than once (several samples of one prompt)."""
        for store in (self._keys, self._values):
            for layer, tensor in store.items():
                store[layer] = tensor.index_select(0, rows)
        self.rows = int(rows.numel())

    def held(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer up to the last position seen, `[rows, slots, kv_heads, head_dim]`."""
        return self._keys[layer][:, : self._slots], self._values[layer][:, : self._slots]

    def _reserve(self, layer: int, like: Tensor) -> None:
        held = self._keys[layer].shape[1] if layer in self._keys else 0
        if held >= self._slots:
            return
        grown = -(-self._slots // GROWTH_TOKENS) * GROWTH_TOKENS
        slots = self._capacity if self._capacity >= self._slots else grown
        for store in (self._keys, self._values):
            fresh = like.new_zeros(self.rows, slots, *self._shape)
            if held:
                fresh[:, :held] = store[layer]
            store[layer] = fresh


def common_beginning(rows: Sequence[list[int]] | Sequence[tuple[int, ...]]) -> int:
    """Length of the beginning that all rows of tokens share: what may go through a model once for all of them."""
    first, last = min(rows), max(rows)  # those between begin with whatever these two share
    length = min(len(first), len(last))
    return next((place for place in range(length) if first[place] != last[place]), length)
