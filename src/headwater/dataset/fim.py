"""Fill in the middle (Bavarian et al. 2022, arXiv 2207.14255), decided when a batch is read.

In: windows of tokens with their documents, and which sample each is. Out: the windows with some documents rearranged,
so that a model that reads left to right learns to write what stands between two pieces. Only samples of the named
domains, which hold code, are touched. A document (the part of it that the window holds, without bos and eos) is cut at
two random tokens into prefix, middle and suffix:

    prefix, suffix, middle (PSM):  <fim_prefix> P <fim_suffix> S <fim_middle> M
    suffix, prefix, middle (SPM):  <fim_prefix> <fim_suffix> S <fim_middle> P M

Bos stays in front, eos behind: after the middle the model learns to end. A document keeps its length: the three
sentinels take the place of the suffix's last three tokens (as StarCoder's training code does), and a document whose
suffix would not have them, or with less than `SHORTEST` tokens, stays as it is. So windows, document borders,
positions and counts are those of the packed data.

    fim = FillInTheMiddle(tokenizer, seed=1, domains=("code",)); tokens = fim.apply(tokens, documents, refs)

Whether and how is a function of (seed, sample, epoch, document) and nothing else, as for masks (`masking.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.core.errors import InputError
from headwater.dataset.masking import below, uniform
from headwater.dataset.order import SampleRef
from headwater.dataset.permutation import derive_key
from headwater.tokenizer import Tokenizer

SENTINELS = (
    ("<fim_prefix>", "<|fim_prefix|>", "<fim-prefix>"),
    ("<fim_suffix>", "<|fim_suffix|>", "<fim-suffix>"),
    ("<fim_middle>", "<|fim_middle|>", "<fim-middle>"),
)
"""Names of the three: Headwater's and StarCoder's, Qwen's, SantaCoder's."""

SHORTEST = 10
"""Tokens of text a document needs; below that hardly anything is left around three sentinels."""

_WHETHER, _ORDER, _CUT = range(3)


class FillInTheMiddle:
    """The rearrangements of one run. Safe to use from several threads.

    rate: share of the documents of `domains` that are rearranged. spm_rate: of these, the share with the suffix first.
    Raises InputError if the tokenizer lacks the sentinels.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, seed: int, domains: Sequence[str], rate: float = 0.5, spm_rate: float = 0.5
    ) -> None:
        self.seed, self.domains, self.rate, self.spm_rate = seed, frozenset(domains), rate, spm_rate
        self.prefix_id, self.suffix_id, self.middle_id = (_sentinel(tokenizer, names) for names in SENTINELS)
        self._bos, self._eos = tokenizer.bos_id, tokenizer.eos_id

    def key(self, ref: SampleRef) -> int:
        """What all decisions about a sample in its epoch follow from."""
        return derive_key("fim", self.seed, ref.domain, ref.seq_len, ref.window, ref.epoch)

    def apply(
        self, tokens: NDArray[np.int64], documents: NDArray[np.int32], refs: Sequence[SampleRef]
    ) -> NDArray[np.int64]:
        """tokens, documents: [rows, seq], documents numbered along each row; `refs`: the sample of each row. Returns
        int64 [rows, seq]."""
        out = tokens.copy()
        for row, ref in enumerate(refs):
            if ref.domain in self.domains:
                self._rearrange(out[row], documents[row], self.key(ref))
        return out

    def _rearrange(self, tokens: NDArray[np.int64], documents: NDArray[np.int32], key: int) -> None:
        """One row, in place."""
        borders = [0, *(np.flatnonzero(np.diff(documents)) + 1).tolist(), len(tokens)]
        keys, count = np.array([key], dtype=np.uint64), len(borders) - 1
        # Four streams of 64 bits a document: whether, in which order, and twice where.
        wanted = below(uniform(keys, count, _WHETHER)[0], self.rate)
        suffix_first = below(uniform(keys, count, _ORDER)[0], self.spm_rate)
        cuts = np.stack((uniform(keys, count, _CUT)[0], uniform(keys, count, _CUT + 1)[0]))
        for number in np.flatnonzero(wanted).tolist():
            first, last = borders[number], borders[number + 1]
            first += int(self._bos is not None and tokens[first] == self._bos)
            last -= int(last > first and tokens[last - 1] == self._eos)
            size = last - first
            if size < SHORTEST:
                continue
            # Two cuts out of size + 1 places.
            left, right = sorted((cuts[:, number] % np.uint64(size + 1)).tolist())
            text = tokens[first:last].copy()
            prefix, middle, suffix = text[:left], text[left:right], text[right : max(right, size - 3)]
            if size - right < 3:
                continue
            parts: list[Any]
            if suffix_first[number]:
                parts = [[self.prefix_id, self.suffix_id], suffix, [self.middle_id], prefix, middle]
            else:
                parts = [[self.prefix_id], prefix, [self.suffix_id], suffix, [self.middle_id], middle]
            tokens[first:last] = np.concatenate(parts)


def _sentinel(tokenizer: Tokenizer, names: Sequence[str]) -> int:
    there = set(tokenizer.special_names)
    for name in names:
        if name in there:
            return tokenizer.id_of(name)
    raise InputError(
        f"the tokenizer has none of {', '.join(names)}, which fill-in-the-middle needs",
        where=str(tokenizer.path),
        mend="train a tokenizer with Headwater, or use train.objective: causal",
    )
