"""What a batch asks of the model: the next token, the middle of a text, or masked words.

In: a `Batch` as it was read. Out: the same batch with what the objective changes. Run by the loader's thread.

    loader = Loader(split, order, objective=MaskedWords(Masking(tokenizer, seed=1)))
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from headwater.dataset.fim import FillInTheMiddle
from headwater.dataset.masking import IGNORE, Masking

if TYPE_CHECKING:
    from headwater.dataset.loader import Batch


class Objective(Protocol):
    """Changes batches of the loader. Pure: the same batch gives the same result."""

    def __call__(self, batch: Batch) -> Batch: ...


@dataclass(frozen=True)
class InfilledMiddles:
    """Fill in the middle: documents of some rows are rearranged, and read left to right like the others."""

    fim: FillInTheMiddle

    def __call__(self, batch: Batch) -> Batch:
        return replace(batch, tokens=self.fim.apply(batch.tokens, batch.documents, batch.refs))


@dataclass(frozen=True)
class MaskedWords:
    """Masked language modelling: inputs with masks, and targets at the same positions."""

    masking: Masking

    def __call__(self, batch: Batch) -> Batch:
        inputs, targets = self.masking.apply(batch.tokens[:, :-1], batch.documents[:, :-1], batch.refs)
        return replace(batch, masked_inputs=inputs, masked_targets=targets, loss_mask=targets != IGNORE)
