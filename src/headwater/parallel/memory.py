"""No memory: whether an error says so (for GPUs torch has a class of its own, for the CPU words alone), and the error
of a rank that wants to start again with less.

    try: module.train_step(1, batch, lr_factor=1.0)
    except Exception as error:
        if not is_out_of_memory(error): raise
"""

from __future__ import annotations

import torch

from headwater.core.errors import HeadwaterError
from headwater.parallel.rank_files import LOST_PEER

_WORDS = ("DefaultCPUAllocator: can't allocate memory", "MPS backend out of memory")


class SmallerPiecesError(HeadwaterError):
    """This rank had no room; all ranks start again and ask for less. A launcher does that by itself, as for a rank that
    was lost, and also where no step was done since the last time."""

    exit_code = LOST_PEER


def is_out_of_memory(error: BaseException) -> bool:
    """True for torch's error on any device, and for Python's and NumPy's own."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS)


def first_line(error: BaseException) -> str:
    """What an error says, without the advice and the C++ stack that may follow it."""
    return (str(error) or type(error).__name__).splitlines()[0]
