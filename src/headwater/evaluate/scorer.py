"""Token probabilities of a decoder over documents of any length.

In: a model (`headwater.model.Decoder`) and documents as token ids. Out: ln p of every token, each scored exactly once.
A document longer than the window is cut by `rolling_windows`; windows of similar length share a forward pass, padded on
the right, which causal attention makes harmless, so the batch size changes speed but no number beyond rounding.

    NeuralScorer(model, window=1024, prefix_id=None).score([np.array([17, 4, 99])])
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from headwater.core.errors import InputError
from headwater.evaluate.windows import rolling_windows
from headwater.model import Decoder, cross_entropy


@dataclass(frozen=True, slots=True)
class _Piece:
    """One window of one document: input ids, and the targets of its last `len(targets)` positions."""

    inputs: NDArray[np.int64]
    targets: NDArray[np.int64]
    document: int
    first_target: int


class NeuralScorer:
    """`TokenScorer` of a decoder.

    `window` is the longest input in tokens, `stride` the most targets a window after the first scores (None: as the
    window). `prefix_id` is what a document's first token is predicted from; None means the model knows no such token,
    and the first token is charged ln(vocabulary) nats, the price of naming any token.
    """

    def __init__(
        self,
        model: Decoder,
        *,
        vocab_size: int,
        window: int,
        stride: int | None = None,
        prefix_id: int | None = None,
        batch_tokens: int = 16384,
        on_progress: Callable[[int], None] | None = None,
    ) -> None:
        self.model = model
        self.vocab_size = vocab_size
        self.window = window
        self.stride = window if stride is None else stride
        self.prefix_id = prefix_id
        self.batch_tokens = batch_tokens
        self._on_progress = on_progress

    def score(self, documents: list[NDArray[np.integer]]) -> list[NDArray[np.float64]]:
        """ln p of every token of every document, float64 arrays as long as the documents.

        Raises InputError for an id outside the vocabulary: another tokenizer made it.
        """
        logs = [np.zeros(len(document), dtype=np.float64) for document in documents]
        pieces: list[_Piece] = []
        for index, document in enumerate(documents):
            if len(document) == 0:
                continue
            if int(document.max()) >= self.vocab_size or int(document.min()) < 0:
                raise InputError(
                    f"document {index} has a token id outside the model's vocabulary of {self.vocab_size}",
                    mend="score with the tokenizer the model was trained with",
                )
            if self.prefix_id is None:
                logs[index][0] = -math.log(self.vocab_size)
            pieces += self._cut(index, document)
        with torch.inference_mode():
            for batch in _batches(pieces, self.batch_tokens):
                for piece, scores in zip(batch, self._forward(batch), strict=True):
                    logs[piece.document][piece.first_target : piece.first_target + len(scores)] = scores
                if self._on_progress is not None:
                    self._on_progress(sum(len(piece.targets) for piece in batch))
        return logs

    def _cut(self, index: int, document: NDArray[np.integer]) -> list[_Piece]:
        tokens = document.astype(np.int64)
        offset = 0  # position in the document of the sequence's first token
        if self.prefix_id is not None:
            tokens, offset = np.concatenate([[self.prefix_id], tokens]), -1
        return [
            _Piece(
                tokens[window.begin : window.end],
                tokens[window.end - window.scored + 1 : window.end + 1],
                index,
                window.end - window.scored + 1 + offset,
            )
            for window in rolling_windows(len(tokens), self.window, self.stride)
        ]

    def _forward(self, batch: list[_Piece]) -> list[NDArray[np.float64]]:
        """ln p of each piece's targets."""
        device = next(self.model.parameters()).device
        longest = max(len(piece.inputs) for piece in batch)
        inputs = np.zeros((len(batch), longest), dtype=np.int64)
        scored = np.zeros((len(batch), longest), dtype=bool)
        for row, piece in enumerate(batch):
            size = len(piece.inputs)
            inputs[row, :size] = piece.inputs
            scored[row, size - len(piece.targets) : size] = True
        hidden = self.model(torch.from_numpy(inputs).to(device))  # [batch, longest, dim]
        hidden = hidden[torch.from_numpy(scored).to(device)]  # [targets, dim]
        targets = torch.from_numpy(np.concatenate([piece.targets for piece in batch])).to(device)
        loss = cross_entropy(hidden, self.model.lm_head_weight, targets, vocab_size=self.vocab_size, per_token=True)
        assert loss.per_token is not None
        logs = -loss.per_token.double().cpu().numpy()
        return np.split(logs, np.cumsum([len(piece.targets) for piece in batch])[:-1])


def _batches(pieces: list[_Piece], batch_tokens: int) -> list[list[_Piece]]:
    """Longest first, so that padding is small and a too large batch fails at the start."""
    batches: list[list[_Piece]] = []
    for piece in sorted(pieces, key=lambda piece: -len(piece.inputs)):
        if batches and (len(batches[-1]) + 1) * len(batches[-1][0].inputs) <= batch_tokens:
            batches[-1].append(piece)
        else:
            batches.append([piece])
    return batches
