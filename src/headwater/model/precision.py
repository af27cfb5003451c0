"""The dtype matrix products are made in: autocast's where autocast is on, else the tensor's own.

product_dtype(hidden)
"""

from __future__ import annotations

import torch
from torch import Tensor


def product_dtype(x: Tensor) -> torch.dtype:
    """Autocast's dtype for the device of x if autocast is on there, else the dtype of x."""
    device = x.device.type
    if device != "meta" and torch.is_autocast_enabled(device):  # meta has no autocast, and asking raises
        return torch.get_autocast_dtype(device)
    return x.dtype
