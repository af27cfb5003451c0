"""Tensors as the pieces that this rank holds: the common ground of sharded and whole tensors in a checkpoint.

In: tensors by name, plain ones or DTensors in any layout. Out: pieces with their place in the whole tensor, and DCP's
plan to write them. A piece that several ranks hold (replicas, tied copies) is planned by each and written by one.

    pieces = pieces_of({"weights.a": dtensor}); pieces["weights.a"].offsets      # (4, 0) on the second of two ranks
    staged = Staging().copy(pieces)                                              # in CPU memory, free to change after

The index in JSON knows pieces only by name, offsets and sizes, so nothing of the layout that wrote is needed to read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, StorageMeta, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType


@dataclass(frozen=True)
class Piece:
    """The part of tensor `name` that this rank holds: `tensor` (on any device) at `offsets` of a whole of `size`."""

    name: str
    size: torch.Size
    offsets: torch.Size
    tensor: Tensor
    sharded: bool

    @property
    def bytes(self) -> int:
        return self.tensor.numel() * self.tensor.element_size()


def pieces_of(tensors: Mapping[str, Tensor]) -> dict[str, Piece]:
    """This rank's pieces, in the order of names; no copies. A rank outside a tensor's mesh, or with an empty part of an
    unevenly sharded one, has none of it.

    Raises TypeError for a DTensor that holds unreduced sums: its parts are no parts of a tensor.
    """
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    pieces: dict[str, Piece] = {}
    for name in sorted(tensors):  # equal state, equal bytes, however the dictionary came about
        tensor = tensors[name].detach()
        if not isinstance(tensor, DTensor):
            pieces[name] = Piece(name, tensor.size(), torch.Size([0] * tensor.dim()), tensor, False)
            continue
        if any(placement.is_partial() for placement in tensor.placements):
            raise TypeError(f"{name} is a sum that was not reduced ({tensor.placements}); it cannot be saved")
        if tensor.device_mesh.get_coordinate() is None:
            continue
        local = tensor.to_local()
        if local.numel() == 0 and tensor.numel() > 0:
            continue
        _, offsets = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
        pieces[name] = Piece(name, tensor.size(), torch.Size(offsets), local, True)
    return pieces


class Staging:
    """Buffers in CPU memory that asynchronous saves copy into. They are kept from save to save: fresh memory costs more
    than the copy. Beside a GPU they are page-locked."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def copy(self, pieces: Mapping[str, Piece]) -> dict[str, Piece]:
        """The pieces as they are now, in memory of their own, valid until the next `copy`."""
        # One thread: several wait for each other at every tensor. On 2 cores that ten processes shared, 1 GB took 0.4 s
        # with one thread and 1.2 to 2.2 s with two; on a free machine memory is the limit either way.
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return self._copy(pieces)
        finally:
            torch.set_num_threads(threads)

    def _copy(self, pieces: Mapping[str, Piece]) -> dict[str, Piece]:
        staged: dict[str, Piece] = {}
        devices = set()
        for name, piece in pieces.items():
            buffer = self._buffers.get(name)
            source = piece.tensor
            if buffer is None or (buffer.shape, buffer.dtype, buffer.stride()) != _layout(source):
                buffer = torch.empty_like(source, device="cpu", pin_memory=source.is_cuda)
                self._buffers[name] = buffer
            buffer.copy_(source, non_blocking=source.is_cuda)
            if source.is_cuda:
                devices.add(source.device)
            staged[name] = Piece(name, piece.size, piece.offsets, buffer, piece.sharded)
        for device in devices:
            torch.cuda.synchronize(device)
        self._buffers = {name: piece.tensor for name, piece in staged.items()}
        return staged


def _layout(tensor: Tensor) -> tuple[torch.Size, torch.dtype, tuple[int, ...]]:
    return tensor.shape, tensor.dtype, torch.empty_like(tensor, device="meta").stride()


class PiecePlanner(DefaultSavePlanner):
    """DCP's plan for a dictionary of pieces. The global plan (who writes a replica, is the tensor covered) is DCP's."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def set_up_planner(
        self, state_dict: dict[str, Any], storage_meta: StorageMeta | None = None, is_coordinator: bool = False
    ) -> None:
        self.state_dict = state_dict
        self.is_coordinator = is_coordinator

    def create_local_plan(self) -> SavePlan:
        self.plan = SavePlan([_write_item(piece) for piece in self.state_dict.values()])
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> Tensor:
        piece: Piece = self.state_dict[index.fqn]
        return piece.tensor


def _write_item(piece: Piece) -> WriteItem:
    chunk = ChunkStorageMetadata(offsets=piece.offsets, sizes=piece.tensor.size())
    # Only the data type is kept in the index, and only equal descriptions of a replica count as one.
    properties = TensorProperties(dtype=piece.tensor.dtype)
    return WriteItem(
        index=MetadataIndex(piece.name, piece.offsets),
        type=WriteItemType.SHARD if piece.sharded else WriteItemType.TENSOR,
        tensor_data=TensorWriteData(chunk=chunk, properties=properties, size=piece.size),
    )
