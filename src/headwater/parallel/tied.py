"""One matrix on two pipeline stages: the embedding on the first, its copy as the head of the last.

In: this rank's two parameters, as far as it has them. Out: the copy equal to the embedding before every forward pass,
and the copy's gradient added to the embedding's after the backward pass.

    tied.pull(); ...forward and backward...; tied.push()

The embedding alone has an optimizer, an average and a name in the checkpoint, so the two cannot drift apart, the
gradient's norm counts the matrix once, and the last stage holds no moments of it. What travels is what an all-reduce
of the gradient over the two ranks would cost: the gradient one way, the weights the other. Sharded parameters have the
same shards on both stages (same tensor- and data-parallel place), so shards meet shards.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from headwater.model import Decoder, Encoder
from headwater.parallel.stages import StageSpec

HEAD = "lm_head.weight"


def is_copy(name: str, module: nn.Module) -> bool:
    """Whether a stage's parameter of this name is the copy of a tied embedding that another stage owns."""
    return isinstance(module, (Decoder, Encoder)) and module.config.tie_word_embeddings and name == HEAD


class TiedEmbedding:
    """The pair of a tied embedding and its copy over one pipeline; does nothing where the two are one."""

    def __init__(
        self,
        specs: Sequence[StageSpec],
        chunks: Sequence[tuple[StageSpec, nn.Module]],
        group: dist.ProcessGroup,
        *,
        tied: bool,
    ) -> None:
        self._group = group
        self._active = tied and len(specs) > 1
        self._owner_rank, self._copy_rank = specs[0].rank, specs[-1].rank
        self._owner: Tensor | None = None
        self._copy: Tensor | None = None
        if not self._active:
            return
        for spec, module in chunks:
            assert isinstance(module, (Decoder, Encoder))
            if spec.first and module.model.embed_tokens is not None:
                self._owner = module.model.embed_tokens.weight
            if spec.last and module.lm_head is not None:
                self._copy = module.lm_head.weight

    @torch.no_grad()
    def pull(self) -> None:
        """Make the copy equal to the embedding, without a gradient. Every rank of the pipeline calls it."""
        if not self._active:
            return
        if self._copy is not None:
            self._copy.grad = None  # of a step that was given up
        if self._owner is not None and self._copy is not None:  # a V has both on its first rank
            _local(self._copy).copy_(_local(self._owner))
        elif self._owner is not None:
            self._send(_local(self._owner), self._copy_rank)
        elif self._copy is not None:
            _local(self._copy).copy_(self._receive(_local(self._copy), self._owner_rank))

    @torch.no_grad()
    def push(self) -> None:
        """Add the copy's gradient to the embedding's and drop it. Every rank of the pipeline calls it, after data
        parallel ranks have summed theirs."""
        if not self._active:
            return
        given = None if self._copy is None else self._gradient(self._copy)
        if self._owner is not None:
            own = self._gradient(self._owner)
            own += self._receive(own, self._copy_rank) if given is None else given
        elif given is not None:
            self._send(given, self._owner_rank)
        if self._copy is not None:
            self._copy.grad = None

    def _gradient(self, parameter: Tensor) -> Tensor:
        gradient = parameter.grad
        assert gradient is not None, "a tied embedding without a gradient"
        if isinstance(parameter, DTensor) and isinstance(gradient, DTensor):
            # Tensor parallelism alone leaves a lookup's gradient a whole matrix, a part of a sum.
            parameter.grad = gradient = gradient.redistribute(placements=parameter.placements)
        return _local(gradient)

    def _send(self, tensor: Tensor, rank: int) -> None:
        if tensor.numel():  # more ranks than rows leave some with an empty shard
            dist.send(tensor.contiguous(), group=self._group, group_dst=rank)

    def _receive(self, like: Tensor, rank: int) -> Tensor:
        received = torch.empty_like(like, memory_format=torch.contiguous_format)
        if received.numel():
            dist.recv(received, group=self._group, group_src=rank)
        return received


def _local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor, sharing its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()
