"""Masked language modelling with dynamic masks over whole words (BERT, RoBERTa), decided when a batch is read.

In: windows of tokens with their documents, and which sample each is. Out: what the model sees and what it must say. Of
the units of text (`words.py`) each is chosen with probability `mask_rate`; of the tokens in a chosen unit 80 % become
the mask token, 10 % a random token, 10 % stay (by default), and all of them are targets. Special tokens are never
chosen and never drawn.

    masking = Masking(tokenizer, seed=1)
    inputs, targets = masking.apply(tokens, documents, refs)

A mask is a function of (seed, sample, epoch, position) and nothing else: a counter-based generator is keyed by seed,
domain, window and epoch, and asked by position. Ranks, workers, layout, batch, restarts and skipped samples cannot
change it; another epoch of the same window has another one. Nothing is stored.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headwater.core.errors import InputError
from headwater.dataset.order import SampleRef
from headwater.dataset.permutation import derive_key
from headwater.tokenizer import Tokenizer

IGNORE = -100
"""Target of a token that is not predicted."""

_CHOOSE, _KIND, _REPLACE = range(3)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def uniform(keys: NDArray[np.uint64], seq: int, stream: int) -> NDArray[np.uint64]:
    """64 random bits for each position of each key, [rows, seq]: splitmix64 (Steele, Lea and Flood 2014) as a counter.

    Streams 0 to 3 of a key are independent.
    """
    counter = np.arange(seq, dtype=np.uint64) * np.uint64(4) + np.uint64(stream + 1)
    with np.errstate(over="ignore"):
        value = keys[:, None] + counter * _GOLDEN
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def below(bits: NDArray[np.uint64], rate: float) -> NDArray[np.bool_]:
    """True with probability `rate`."""
    return (bits >> np.uint64(11)) < np.uint64(round(rate * (1 << 53)))


class Masking:
    """The masks of one run. Safe to use from several threads.

    mask_rate: share of the text that is predicted. mask_token_rate, random_token_rate: of that, the share replaced by
    the mask token, and by a random one; the rest stays as it is. whole_word: choose words, else single tokens. Raises
    InputError if the tokenizer has no mask token.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        seed: int,
        mask_rate: float = 0.15,
        mask_token_rate: float = 0.8,
        random_token_rate: float = 0.1,
        whole_word: bool = True,
    ) -> None:
        from headwater.dataset.words import WordBorders  # compiled code, which only masking needs

        if tokenizer.mask_id is None:
            raise InputError(
                "the tokenizer has no mask token, which masked language modelling needs",
                where=str(tokenizer.path),
                mend="train a tokenizer with Headwater, or name a mask_token in its tokenizer_config.json",
            )
        self.seed, self.mask_id = seed, tokenizer.mask_id
        self.mask_rate, self.whole_word = mask_rate, whole_word
        self._mask_below = mask_token_rate
        self._change_below = mask_token_rate + random_token_rate
        self._borders = WordBorders(tokenizer)
        self._ordinary = np.flatnonzero(~self._borders.special)

    def key(self, ref: SampleRef) -> int:
        """What all decisions about a sample in its epoch follow from."""
        return derive_key("mask", self.seed, ref.domain, ref.seq_len, ref.window, ref.epoch)

    def apply(
        self, tokens: NDArray[np.int64], documents: NDArray[np.int32], refs: Sequence[SampleRef]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(inputs, targets), each int64 [rows, seq], of tokens and documents [rows, seq] and the sample of each row."""
        seq = tokens.shape[1]
        keys = np.array([self.key(ref) for ref in refs], dtype=np.uint64)
        text = ~self._borders.special[tokens]
        bits = uniform(keys, seq, _CHOOSE)
        if self.whole_word:
            begins = self._borders.begins(tokens, documents)
            starts = np.maximum.accumulate(np.where(begins, np.arange(seq), 0), axis=1)
            bits = np.take_along_axis(bits, starts, axis=1)
        chosen = below(bits, self.mask_rate) & text
        kind = uniform(keys, seq, _KIND)
        masked = chosen & below(kind, self._mask_below)
        random = chosen & ~masked & below(kind, self._change_below)
        drawn = self._ordinary[uniform(keys, seq, _REPLACE) % np.uint64(len(self._ordinary))]
        inputs = np.where(masked, self.mask_id, np.where(random, drawn, tokens))
        return inputs, np.where(chosen, tokens, IGNORE)
