"""The random state of the process: taken for checkpoints, and fenced off from what must not disturb training.

    with preserved_rng(): text = sampler(...)        # whatever it draws, training goes on as if it had not

Python's and NumPy's states are kept as JSON values, torch's as byte tensors. Ranks start with equal states and keep
them unless something draws on one alone; only states that differ from rank 0's are kept apart, as tensors.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from headwater.core.files import sha256_bytes
from headwater.core.jsonl import canonical_json, parse_json
from headwater.parallel.agreement import Ranks


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy and torch on every device."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def rng_state() -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """(JSON part, tensor part) of the random state."""
    version, internal, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state()
    plain = {
        "python": [version, list(internal), gauss],
        "numpy": [kind, [int(key) for key in keys], int(position), int(has_gauss), float(cached)],
    }
    tensors = {"torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        tensors["cuda"] = torch.cuda.get_rng_state()
    return plain, tensors


def set_rng_state(plain: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    """Put back what `rng_state` gave. A state of CUDA is left out where there is no CUDA."""
    version, internal, gauss = plain["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, position, has_gauss, cached = plain["numpy"]
    np.random.set_state((kind, np.asarray(keys, dtype=np.uint32), position, has_gauss, cached))
    torch.set_rng_state(tensors["torch"])
    if "cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["cuda"])


def shared_rng_state(ranks: Ranks) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """(rank 0's JSON part, this rank's tensors to save). Collective. Rank 0's tensors have the names of `rng_state`; a
    rank whose state differs from it adds its own, under its number."""
    plain, tensors = rng_state()
    written = canonical_json(plain)
    digest = sha256_bytes(written + b"".join(tensor.numpy().tobytes() for tensor in tensors.values()))
    digests = ranks.gather(digest)
    own: dict[str, torch.Tensor] = {}
    if ranks.first:
        own = tensors
    elif digest != digests[0]:
        own = {f"{ranks.rank}.{name}": tensor for name, tensor in tensors.items()}
        own[f"{ranks.rank}.plain"] = torch.frombuffer(bytearray(written), dtype=torch.uint8)
    return ranks.from_first(plain), own


def set_shared_rng_state(plain: dict[str, Any], tensors: dict[str, torch.Tensor], rank: int) -> None:
    """Put back what `shared_rng_state` gave: this rank's own state if there is one, else rank 0's."""
    prefix = f"{rank}."
    own = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    if "plain" in own:
        plain = parse_json(own.pop("plain").numpy().tobytes())
    else:
        own = {name: tensor for name, tensor in tensors.items() if "." not in name}
    set_rng_state(plain, own)


@contextmanager
def preserved_rng() -> Iterator[None]:
    """Run a block, then put the random state back."""
    plain, tensors = rng_state()
    try:
        yield
    finally:
        set_rng_state(plain, tensors)
