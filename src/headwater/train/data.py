"""From the packed dataset to the tensors of a step.

In: a `TokenDataset`, the run's order, the loader's batches. Out: `Batch`es as the train module wants them, and the
windows validation looks at. How many bytes of text the predicted tokens stand for comes from the dataset's index.

    data = RunData(dataset, StepOrder(...), document_mask=True)
    for batch in data.batches(1, 100): ...
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from headwater.core.errors import InputError
from headwater.dataset import DomainStream, Loader, StepOrder, TokenDataset
from headwater.dataset.loader import Batch as LoadedBatch
from headwater.dataset.loader import positions_of
from headwater.dataset.objective import Objective
from headwater.dataset.order import SampleRef
from headwater.train.batch import Batch

VALIDATION_EPOCH = -1
"""Stands for the epoch of held-out windows, whose masks are never those of a training window."""


class RunData:
    """Training batches of a run, read ahead in a thread."""

    def __init__(
        self,
        dataset: TokenDataset,
        order: StepOrder,
        *,
        document_mask: bool,
        rank: int = 0,
        ranks: int = 1,
        objective: Objective | None = None,
        cache_ahead: int = 0,
    ) -> None:
        """`rank` of `ranks`: the data-parallel place, which chooses the rows of every batch. `objective` and
        `cache_ahead` as in `Loader`."""
        split = dataset.split("train")
        self._loader = Loader(
            split,
            order,
            rank=rank,
            world=ranks,
            restart_positions=document_mask,
            objective=objective,
            cache_ahead=cache_ahead,
        )
        self._document_mask = document_mask
        self._bytes_per_token = {name: _bytes_per_target(stream) for name, stream in split.domains.items()}

    @property
    def order(self) -> StepOrder:
        """Which samples each step reads."""
        return self._loader.order

    def follow(self, order: StepOrder) -> None:
        """Read in another order from here on: the ledger has changed. Iterators made before must have been closed."""
        self._loader.order = order

    def batches(self, first_step: int, last_step: int) -> Iterator[Batch]:
        """Batches of first_step..last_step in order; closing the iterator ends the reading thread."""
        for loaded in self._loader.iterate(first_step, last_step):
            yield self._convert(loaded)

    def _convert(self, loaded: LoadedBatch) -> Batch:
        return _batch(
            loaded,
            self._document_mask,
            text_bytes=_text_bytes(loaded, self._bytes_per_token),
            all_domains=self._bytes_per_token,  # the same on every rank, whatever its rows are from
        )


@dataclass(frozen=True)
class ValidationWindows:
    """Held-out windows of one domain, [windows, seq_len + 1], the same ones all through a run."""

    domain: str
    batch: Batch


def validation_windows(
    dataset: TokenDataset,
    seq_len: int,
    per_domain: int,
    *,
    document_mask: bool,
    objective: Objective | None = None,
) -> list[ValidationWindows]:
    """Up to `per_domain` windows of each domain of the validation split, spread evenly over it. An objective's masks
    are the same ones every time.

    [] if the dataset has no validation split. A domain shorter than one window is left out; InputError if all are.
    """
    if "validation" not in dataset.splits:
        return []
    found = []
    split = dataset.split("validation")
    for name, stream in split.domains.items():
        count = max(0, stream.tokens - 1) // seq_len
        if not count:
            continue
        chosen = sorted({index * count // min(per_domain, count) for index in range(min(per_domain, count))})
        windows = [stream.window(index * seq_len, (index + 1) * seq_len + 1) for index in chosen]
        documents = np.stack([window.documents for window in windows])
        loaded = LoadedBatch(
            step=0,
            tokens=np.stack([window.tokens.astype(np.int64) for window in windows]),
            documents=documents,
            positions=positions_of(documents[:, :-1], restart=document_mask),
            loss_mask=documents[:, 1:] == documents[:, :-1],
            refs=tuple(SampleRef(index, name, index, VALIDATION_EPOCH, index, seq_len) for index in chosen),
        )
        if objective is not None:
            loaded = objective(loaded)
        text_bytes = _text_bytes(loaded, {name: _bytes_per_target(stream)})
        found.append(ValidationWindows(name, _batch(loaded, document_mask, text_bytes=text_bytes)))
    if not found:
        raise InputError(
            f"no domain of the validation split has a window of {seq_len + 1:,} tokens",
            where=str(dataset.path),
            mend="give the validation split a larger share (curate.split), or use a shorter train.seq_len",
        )
    return found


def _bytes_per_target(stream: DomainStream) -> float:
    """Text bytes a predicted token stands for; the first token of a document is not predicted."""
    return stream.bytes / max(1, stream.tokens - stream.documents)


def _tokens_by_domain(domains: Sequence[str], seq_len: int) -> dict[str, int]:
    return {name: rows * seq_len for name, rows in Counter(domains).items()}


def _text_bytes(loaded: LoadedBatch, bytes_per_token: Mapping[str, float]) -> float:
    """Bytes of text the predicted tokens stand for; 0 (not known) of masked ones, which are guessed from both sides:
    bits per byte would not compare with those of a model that reads."""
    if loaded.masked_targets is not None:
        return 0.0
    valid = loaded.loss_mask.sum(axis=1)
    return sum(int(count) * bytes_per_token[domain] for count, domain in zip(valid, loaded.domains, strict=True))


def _batch(loaded: LoadedBatch, document_mask: bool, *, text_bytes: float, all_domains: Iterable[str] = ()) -> Batch:
    """The tensors of loaded rows; a target that does not count becomes IGNORE."""
    domain_tokens = {**dict.fromkeys(all_domains, 0), **_tokens_by_domain(loaded.domains, loaded.inputs.shape[1])}
    places = {name: place for place, name in enumerate(domain_tokens)}
    inputs = np.ascontiguousarray(loaded.inputs)
    documents = np.ascontiguousarray(loaded.documents[:, :-1])
    cached = loaded.cached_rows
    return Batch(
        tokens=torch.from_numpy(inputs),
        targets=torch.from_numpy(loaded.counted_targets),
        positions=torch.from_numpy(loaded.positions) if document_mask else None,
        documents=torch.from_numpy(documents) if document_mask else None,
        domain_tokens=domain_tokens,
        text_bytes=text_bytes,
        cache_hit_ratio=None if cached is None or not loaded.refs else cached / len(loaded.refs),
        domains=torch.tensor([places[name] for name in loaded.domains], dtype=torch.int64),
    )
