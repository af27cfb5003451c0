"""Activations in host memory between forward and backward pass.

In: a function, such as a layer's forward. Out: the same function; large tensors it saves for the backward pass are
copied to the host and come back when they are needed.

    layer.forward = offloaded(layer.forward)

On CUDA the copies go to pinned memory in the stream of the computation, both ways, so nothing has to wait but the
stream. Parameters are never copied: they are in memory anyway. On a CPU everything is in host memory already.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

LEAST_BYTES = 1 << 20
"""Smaller tensors stay: they are not worth a transfer's latency."""


class HostMemory(saved_tensors_hooks):
    """While active, tensors saved for the backward pass wait in host memory; one that several operations save is copied
    once. `moved`: bytes copied there."""

    def __init__(self, least_bytes: int = LEAST_BYTES) -> None:
        self.moved = 0
        self._copies: dict[tuple[Any, ...], tuple[StorageWeakRef, Tensor]] = {}

        def pack(tensor: Tensor) -> Any:
            if not _worth_it(tensor, least_bytes):
                return tensor
            return tensor.device, self._copy(tensor)

        def unpack(packed: Any) -> Tensor:
            if isinstance(packed, Tensor):
                return packed
            device, host = packed
            back = torch.empty_strided(host.size(), host.stride(), dtype=host.dtype, device=device)
            return back.copy_(host, non_blocking=True)

        super().__init__(pack, unpack)

    def _copy(self, tensor: Tensor) -> Tensor:
        storage = StorageWeakRef(tensor.untyped_storage())
        shape = (tensor.storage_offset(), tensor.size(), tensor.stride(), tensor.dtype)
        key = (storage.cdata, tensor._version, *shape)
        known = self._copies.get(key)
        if known is not None and not known[0].expired():  # the weak reference keeps the storage's number from reuse
            return known[1]
        self.moved += tensor.nbytes
        host = torch.empty_strided(  # compiled code counts on the strides
            tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu", pin_memory=tensor.is_cuda
        )
        host.copy_(tensor, non_blocking=True)
        self._copies[key] = (storage, host)
        return host

    def __enter__(self) -> HostMemory:  # type: ignore[override]
        super().__enter__()
        return self

    def __exit__(self, *args: object) -> None:
        self._copies.clear()
        super().__exit__(*args)


def _worth_it(tensor: Tensor, least_bytes: int) -> bool:
    parameter = isinstance(tensor if tensor._base is None else tensor._base, nn.Parameter)
    if parameter or type(tensor) is not Tensor or tensor.layout != torch.strided or tensor.nbytes < least_bytes:
        return False
    return bool(torch.ops.aten.is_non_overlapping_and_dense(tensor))  # no expanded tensors, nor parts with gaps


def offloaded(function: Callable[..., Any], least_bytes: int | None = None) -> Callable[..., Any]:
    """The function, with what it saves for the backward pass in host memory."""

    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with HostMemory(LEAST_BYTES if least_bytes is None else least_bytes):
            return function(*args, **kwargs)

    return wrapper
