"""The catalogue of accelerators: peaks, memory, links, power and price, each with where it comes from.

In: `data/hardware.yaml` (editable facts). Out: frozen `Accelerator` objects.

    python -c "from headwater.plan.hardware import accelerator; print(accelerator('a100-80gb'))"
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from headwater.core.errors import InputError

from .quantities import count, positive

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8", "mxfp8", "nvfp4", "int8")
REQUIRED = ("peak", "memory_gb", "memory_tbs", "intra_gbs")
FIELDS = ("name", "names", "domain", "units", "gemm_ratio", "watts", "pcie_gbs", "price", "sources")


@dataclass(frozen=True)
class Accelerator:
    """One accelerator part.

    Peaks are dense FLOP/s; memory in bytes; bandwidths in bytes/s, one direction; `units` the number of
    streaming multiprocessors (what a wave of tiles runs over); `gemm_ratio` best measured GEMM rate / peak.
    """

    name: str
    peak: Mapping[str, float]
    memory_bytes: float
    memory_bandwidth: float
    intra_bandwidth: float
    domain: int
    units: int
    gemm_ratio: Mapping[str, float]
    watts: float
    pcie_bandwidth: float
    price: tuple[float, float, float]
    sources: Mapping[str, str] = field(default_factory=dict)

    def peak_flops(self, precision: str) -> float:
        """Dense peak in FLOP/s for `precision`; InputError when the part cannot compute in it."""
        key = "fp8" if precision == "mxfp8" and "mxfp8" not in self.peak else precision
        if key not in self.peak:
            raise InputError(
                f"{self.name} has no {precision} arithmetic",
                where="precision",
                mend=f"choose one of {', '.join(sorted(self.peak))}",
            )
        return self.peak[key] * 1e12

    def gemm_limit(self, precision: str) -> float:
        """Best measured matrix-multiply rate as a fraction of the dense peak of `precision`."""
        half = self.gemm_ratio.get("bf16", self.gemm_ratio.get("fp16", 0.75))
        if precision in ("fp8", "mxfp8", "int8", "nvfp4"):
            return self.gemm_ratio.get(precision, self.gemm_ratio.get("fp8", half))
        return half

    @property
    def half(self) -> str:
        """The 16-bit precision attention and norms run in."""
        return "bf16" if "bf16" in self.peak else "fp16"


def _merge(raw: Mapping[str, Any], name: str) -> dict[str, Any]:
    entry = dict(raw[name])
    parent = entry.pop("like", None)
    if parent is None:
        return entry
    base = _merge(raw, parent)
    sources = {**base.get("sources", {}), **entry.get("sources", {})}
    return {**base, **entry, "sources": sources, "names": entry.get("names", [])}


def from_mapping(name: str, entry: Mapping[str, Any]) -> Accelerator:
    """Build an accelerator from the fields of `hardware.yaml` (also used for a part given in a cluster file)."""
    unknown = sorted(set(map(str, entry)) - {*FIELDS, *REQUIRED})
    if unknown:
        known = ", ".join((*REQUIRED, *FIELDS))
        raise InputError(f"unknown field {unknown[0]!r}", where=f"gpu {name}", mend=f"known: {known}")
    missing = [key for key in REQUIRED if entry.get(key) is None]
    if missing:
        raise InputError(f"accelerator {name} lacks {', '.join(missing)}", where="gpu", mend="give all four fields")

    def number(key: str, most: float, usual: float = 0.0) -> float:
        return positive(entry.get(key, usual), f"gpu {name}: {key}", limit=most)

    price = entry.get("price", (1.0, 2.0, 4.0))
    if not isinstance(price, list | tuple) or len(price) != 3:
        raise InputError(f"{price!r} is not low, middle, high", where=f"gpu {name}: price", mend="three numbers")
    low, mid, high = (positive(value, f"gpu {name}: price", limit=1e4) for value in price)
    return Accelerator(
        name=name,
        peak=_by_precision(entry["peak"], f"gpu {name}: peak", 1e7),
        memory_bytes=number("memory_gb", 1e6) * 2.0**30,  # vendors' GB are what nvidia-smi shows in GiB
        memory_bandwidth=number("memory_tbs", 1e4) * 1e12,
        intra_bandwidth=number("intra_gbs", 1e6) * 1e9,
        domain=count(entry.get("domain", 8), f"gpu {name}: domain"),
        units=count(entry.get("units", 108), f"gpu {name}: units"),
        gemm_ratio=_by_precision(entry.get("gemm_ratio", {"bf16": 0.75}), f"gpu {name}: gemm_ratio", 1.0),
        watts=number("watts", 1e6, 500.0),
        pcie_bandwidth=number("pcie_gbs", 1e5, 25.0) * 1e9,
        price=(low, mid, high),
        sources=dict(entry.get("sources", {})),
    )


def _by_precision(values: Any, where: str, most: float) -> dict[str, float]:
    """A number above zero for each of some precisions."""
    if not isinstance(values, Mapping) or not values or set(values) - set(PRECISIONS):
        raise InputError(f"{values!r}", where=where, mend=f"a number for some of {', '.join(PRECISIONS)}")
    return {str(key): positive(value, f"{where}.{key}", limit=most) for key, value in values.items()}


@cache
def catalogue() -> dict[str, Accelerator]:
    """All parts by canonical name."""
    raw = yaml.safe_load(files("headwater.plan").joinpath("data/hardware.yaml").read_text())["accelerators"]
    return {name: from_mapping(name, _merge(raw, name)) for name in raw}


@cache
def _aliases() -> dict[str, str]:
    raw = yaml.safe_load(files("headwater.plan").joinpath("data/hardware.yaml").read_text())["accelerators"]
    table = {name: name for name in raw}
    for name, entry in raw.items():
        table.update({str(alias).lower(): name for alias in entry.get("names", [])})
    return table


_MAKERS = re.compile(
    r"^\d+\s*x\s*|\b(nvidia|amd|instinct|tesla|geforce|google|huawei|cloud|intel|habana|hpu|dgx|hgx|"
    r"ampere|hopper|blackwell|volta)\b"
)
_BOARDS = re.compile(r"-(sxm|hgx|dgx|nvl|hbm)\d*[a-z]?(?=-|$)")
_MEMORY = re.compile(r"-(\d+)-?gi?b?(?=-|$)")


def _spellings(name: str) -> list[str]:
    """Ways to look a name up, as it is first: without count, maker, board and punctuation, its memory at the end."""
    key = re.sub(r"[\s_/()-]+", "-", _MAKERS.sub("", name.strip().lower())).strip("-")
    plain = _BOARDS.sub("", key)
    size = _MEMORY.search(plain)
    last = [_MEMORY.sub("", plain) + f"-{size.group(1)}gb"] if size else []
    return [key, plain, *last]


def accelerator(name: str) -> Accelerator:
    """Look a part up by name or alias, however it is spelt; InputError with the nearest names when unknown."""
    table = _aliases()
    closed = {alias.replace("-", ""): part for alias, part in table.items()}
    for spelling in _spellings(name):
        if spelling in table or spelling.replace("-", "") in closed:
            return catalogue()[table.get(spelling) or closed[spelling.replace("-", "")]]
    key = _spellings(name)[0]
    size, short = _MEMORY.search(key), _MEMORY.sub("", _BOARDS.sub("", key)).replace("-", "")
    if size and short in closed and catalogue()[closed[short]].memory_bytes == float(size.group(1)) * 2.0**30:
        return catalogue()[closed[short]]
    near = difflib.get_close_matches(key, table, n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}?" if near else f"known: {', '.join(sorted(catalogue()))}"
    raise InputError(f"unknown accelerator {name!r}", where="gpu", mend=f"{hint} or describe it in a cluster file")
