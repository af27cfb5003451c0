"""Tensors without data whose life is written down: what the flight simulator runs the trainer on.

In: a `Ledger` (memory) and a `Traffic` (communication) to tell. Out: a mode; inside it every operation gives tensors of
the right shape, dtype and strides that take no memory, and the two hear of every storage and every message.

    with Recorder(ledger, traffic, norm=2.0).watching(): module.train_step(...)

PyTorch's `FakeTensorMode` does the work. Two things are added. The operations that a step consists of take a short way
to the same shape kernels, without the general mode's cache of results: a third of the time. And where the trainer asks
for a number, there is one (`ANSWERS`), since no tensor has any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator

_ATEN = torch.ops.aten
_CPU = torch.device("cpu")

VIEWS = {
    _ATEN.view.default, _ATEN.detach.default, _ATEN.t.default, _ATEN.transpose.int, _ATEN._unsafe_view.default,
    _ATEN.unsqueeze.default, _ATEN.squeeze.dim, _ATEN.split.Tensor, _ATEN.slice.Tensor, _ATEN.expand.default,
    _ATEN.as_strided.default, _ATEN.permute.default, _ATEN.alias.default, _ATEN.select.int, _ATEN.unbind.int,
}  # fmt: skip
"""Operations that take the short way and whose results share memory with what they are given."""

IN_PLACE = {
    _ATEN.add_.Tensor, _ATEN.mul_.Tensor, _ATEN.div_.Tensor, _ATEN.addcmul_.default, _ATEN.copy_.default,
    _ATEN.exp_.default, _ATEN.sub_.Tensor, _ATEN.zero_.default, _ATEN.fill_.Scalar,
}  # fmt: skip
"""Operations that take the short way and return their first argument."""

FRESH = {
    _ATEN.mul.Tensor, _ATEN.mm.default, _ATEN.bmm.default, _ATEN.cat.default, _ATEN.add.Tensor, _ATEN.sub.Tensor,
    _ATEN.div.Tensor, _ATEN.sum.dim_IntList, _ATEN.pow.Tensor_Scalar, _ATEN.rsqrt.default, _ATEN.mean.dim,
    _ATEN.silu.default, _ATEN.silu_backward.default, _ATEN.neg.default, _ATEN.clone.default, _ATEN.empty_like.default,
    _ATEN.zeros_like.default, _ATEN.stack.default, _ATEN.new_empty.default, _ATEN.new_zeros.default,
    _ATEN._to_copy.default,
}  # fmt: skip
"""Operations that take the short way and make a new tensor."""

SHORT = VIEWS | IN_PLACE | FRESH

ANSWERS: dict[torch.dtype, Any] = {
    torch.bool: False,  # nothing is wrong: no target outside the vocabulary, no document border
    torch.int32: 1,  # a vote: the other pipeline ranks say what this one says
    torch.int64: 0,  # a place among micro-batches, which are all alike; plans of ranks, which agree
    torch.float32: 0.0,  # overflows found in half precision
}
"""What a number that the trainer reads is, by dtype; float64 (norms, sums and counts) is the recorder's to say."""


class Listener(Protocol):
    """What a `Recorder` tells about memory."""

    def see(self, tensor: torch.Tensor) -> None:
        """A tensor that an operation made; its storage may be known."""


class Messages(Protocol):
    """What a `Recorder` tells about communication and arithmetic."""

    def message(self, func: Any, args: tuple[Any, ...], result: Any) -> None:
        """A communication operation, with its arguments and result."""

    def product(self, func: Any, args: tuple[Any, ...], result: Any) -> None:
        """A matrix product or an attention."""


PRODUCTS = {_ATEN.mm.default, _ATEN.bmm.default, _ATEN.addmm.default, _ATEN.mm.out, _ATEN._scaled_mm.default}


class Recorder(FakeTensorMode):
    """See the module. `norm`: what sums, counts and the gradient's norm are; above the clipping limit, so that the
    gradient is clipped; `chosen`: the share of a mask that is true, where elements are picked by one. Parameters must
    be made (`to_empty`) inside the mode."""

    def __init__(self, memory: Listener, messages: Messages, *, norm: float, chosen: float = 1.0) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self._memory, self._messages, self._norm, self._chosen = memory, messages, norm, chosen
        self.operations = 0
        self._paused = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """The mode in force. How a distributed operation shards is found by trying it on whole tensors without data
        (under a lock, which serves as the mark here): that is no work of this rank's."""
        before = ShardingPropagator._fake_mode_lock
        ShardingPropagator._fake_mode_lock = _Pause(self)  # type: ignore[assignment]
        try:
            with self:
                yield
        finally:
            ShardingPropagator._fake_mode_lock = before

    def pause(self, depth: int) -> None:
        """Record nothing while more have begun (+1) than ended (-1)."""
        self._paused += depth

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default:
            return args[0].fake_device
        if DTensor in types:
            return NotImplemented  # it comes back with the parts of this rank
        kwargs = kwargs or {}
        if func is _ATEN._local_scalar_dense.default:
            return ANSWERS.get(args[0].dtype, self._norm)
        if func is _ATEN.nonzero.default:
            places = [round(self._chosen * args[0].numel()), args[0].dim()]
            func, args, kwargs = _ATEN.new_empty.default, (args[0], places), {"dtype": torch.int64}
        if self._paused:
            return self.dispatch(func, types, args, kwargs)
        self.operations += 1
        if func in SHORT and _all_fake(args):
            return self._short(func, args, kwargs)
        result = self.dispatch(func, types, args, kwargs)
        self._record(func, args, result)
        return result

    def _short(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = self._shapes(func, args, kwargs)
        if func in IN_PLACE:
            return args[0]
        if func in VIEWS:
            if isinstance(result, torch.Tensor):
                return FakeTensor(self, result, _CPU)
            return type(result)(FakeTensor(self, part, _CPU) for part in result)
        made = FakeTensor(self, result, _CPU)
        self._memory.see(made)
        if func in PRODUCTS:
            self._messages.product(func, args, made)
        return made

    def _shapes(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The operation on meta tensors, called as `FakeTensorMode` does (`in_kernel_invocation_manager`)."""
        if "device" in kwargs:
            kwargs = {**kwargs, "device": torch.device("meta")}
        with torch._C._DisableTorchDispatch():
            self.in_kernel_invocation = True
            with torch._C._PreserveDispatchKeyGuard():
                torch._C._set_meta_in_tls_dispatch_include(True)
                try:
                    return func(*args, **kwargs)
                finally:
                    self.in_kernel_invocation = False

    def _record(self, func: Any, args: tuple[Any, ...], result: Any) -> None:
        if isinstance(result, torch.Tensor):
            self._memory.see(result)
        elif isinstance(result, (list, tuple)):
            for part in result:
                if isinstance(part, torch.Tensor):
                    self._memory.see(part)
                elif isinstance(part, list):
                    for item in part:
                        if isinstance(item, torch.Tensor):
                            self._memory.see(item)
        space = func.namespace if isinstance(func, torch._ops.OpOverload) else ""
        if space in ("c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor"):
            self._messages.message(func, args, result)
        elif func in PRODUCTS or space == "headwater":
            self._messages.product(func, args, result)


class _Pause:
    """A context in which a recorder records nothing; it may be entered again and again."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def __enter__(self) -> None:
        self._recorder.pause(1)

    def __exit__(self, *_: object) -> None:
        self._recorder.pause(-1)


def _all_fake(args: tuple[Any, ...]) -> bool:
    """Whether all tensors are without data (a constant has some, which the general way keeps)."""
    return all(
        all(_without_data(item) for item in value) if type(value) is list else _without_data(value) for value in args
    )


def _without_data(value: Any) -> bool:
    return not isinstance(value, torch.Tensor) or (type(value) is FakeTensor and value.constant is None)
