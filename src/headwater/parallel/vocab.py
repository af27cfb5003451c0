"""Cross-entropy with the vocabulary shared by the ranks of the `tp` axis: no rank ever has all logits of a token.

In: hidden states of this rank's share of the sequence, its rows of the head, targets of the whole sequence. Out: the
same `CrossEntropy` as `headwater.model.loss`, equal on every tp rank. The states are gathered along the sequence; a
chunk then costs two small all-reduces, of its largest logits, and of its sums of exponentials together with the logits
of its targets (Megatron-LM, arXiv 1909.08053, section 3).

    loss = sharded_cross_entropy(hidden, stage.lm_head_weight, targets, mesh=mesh, vocab_size=config.true_vocab_size)

The embedding is torch's `RowwiseParallel` (see `headwater.parallel.tensor`).
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from headwater.model.loss import CrossEntropy, cross_entropy
from headwater.parallel.mesh import Mesh


class VocabularyShard:
    """Rows `first` and following of the head; sums and maxima over all shards. See `model.loss.VocabularyPart`."""

    def __init__(self, group: ProcessGroup, first: int) -> None:
        self.first = first
        self._group = group

    def maximum_(self, values: Tensor) -> None:
        dist.all_reduce(values, dist.ReduceOp.MAX, group=self._group)

    def sum_(self, values: Tensor) -> None:
        dist.all_reduce(values, dist.ReduceOp.SUM, group=self._group)


def sharded_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    mesh: Mesh,
    vocab_size: int | None = None,
    z_loss: float = 0.0,
    per_token: bool = False,
    chunk: int | None = None,
    bias: Tensor | None = None,
    sparse: bool = False,
    accuracy: bool = False,
) -> CrossEntropy:
    """As `model.loss.cross_entropy`; with tp above 1, hidden is [batch, seq / tp, d] and weight (and
    bias) a DTensor cut by rows.

    Differentiate `total` on every tp rank: each returns its own share of the gradients.
    """
    group = mesh.group("tp")
    part = None
    if group is not None:
        assert isinstance(weight, DTensor), "tensor parallelism cuts the head"
        rows = weight.shape[0] // mesh.size("tp")
        part = VocabularyShard(group, rows * mesh.coordinate("tp"))
        hidden, weight = gather_sequence(hidden, mesh), weight.to_local()
        if isinstance(bias, DTensor):
            bias = bias.to_local()
    return cross_entropy(
        hidden,
        weight,
        targets,
        vocab_size=vocab_size,
        z_loss=z_loss,
        per_token=per_token,
        chunk=chunk,
        bias=bias,
        sparse=sparse,
        accuracy=accuracy,
        part=part,
    )


def gather_sequence(hidden: Tensor, mesh: Mesh) -> Tensor:
    """[batch, seq / tp, d] -> [batch, seq, d] on every tp rank; gradients of the ranks are summed on the way back."""
    if mesh.size("tp") == 1:
        return hidden
    shared = DTensor.from_local(hidden, mesh.submesh("tp"), (Shard(1),), run_check=False)
    whole = shared.redistribute(placements=(Replicate(),))
    gathered = whole.to_local(grad_placements=(Partial(),))
    assert isinstance(gathered, torch.Tensor)
    return gathered
