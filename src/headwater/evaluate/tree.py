"""One forward pass over contexts and their continuations, with no padding and no context run twice.

In: contexts, each with the continuations that follow it, all behind one beginning whose keys and values are there
already. They stand one after the other in a single row; a token sees the beginning, its own context and its own
continuation so far, and has the position it would have alone. Out: hidden states.

    hidden = run_trees(model, [Tree((5, 6), ((7, 8), (7, 9)))])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headwater.model import Decoder, KVCache
from headwater.model.attention import scaled_dot_product

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tree:
    """A context, at least one token, and what may follow it."""

    context: Tokens
    branches: tuple[Tokens, ...]

    @property
    def size(self) -> int:
        return len(self.context) + sum(map(len, self.branches))


class _TreeAttention:
    """The new tokens attend to those held and to each other as the mask says; nothing is kept."""

    def __init__(self, mask: Tensor, held: KVCache | None) -> None:
        self._mask, self._held = mask, held

    def begin(self, positions: Tensor) -> None:
        """Positions decide nothing here: the mask does."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self._held is not None:
            keys, values = self._held.held(layer)
            k, v = torch.cat((keys, k), 1), torch.cat((values, v), 1)
        return scaled_dot_product(q, k, v, self._mask)


def run_trees(model: Decoder, trees: Sequence[Tree], held: KVCache | None = None, begin: int = 0) -> list[list[Tensor]]:
    """Hidden states of each tree: those of its context, then those of every branch, `[tokens, dim]` each.

    held: a cache of one row with the `begin` tokens that stand before every tree.
    """
    device = next(model.parameters()).device
    parts = [(tree, part, part != -1) for tree, each in enumerate(trees) for part in range(-1, len(each.branches))]
    tokens: list[int] = []
    positions: list[int] = []
    lengths = []
    for number, part, is_branch in parts:
        own = trees[number].branches[part] if is_branch else trees[number].context
        start = begin + (len(trees[number].context) if is_branch else 0)
        tokens += own
        positions += range(start, start + len(own))
        lengths.append(len(own))
    repeats = torch.tensor(lengths)
    tree = torch.repeat_interleave(torch.tensor([number for number, _, _ in parts]), repeats)
    branch = torch.repeat_interleave(torch.tensor([part for _, part, _ in parts]), repeats)
    order = torch.arange(len(tokens))
    seen = (order[:, None] >= order) & (tree[:, None] == tree) & ((branch == -1) | (branch[:, None] == branch))
    mask = torch.cat((torch.ones(len(tokens), begin, dtype=torch.bool), seen), 1)[None, None].to(device)
    hidden = model(
        torch.tensor([tokens], device=device),
        torch.tensor([positions], device=device),
        cache=_TreeAttention(mask, held),
    )[0]
    pieces = iter(torch.split(hidden, lengths))
    return [[next(pieces) for _ in range(1 + len(each.branches))] for each in trees]
