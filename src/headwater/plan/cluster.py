"""The machines: which accelerator, how many, how they are wired, what they cost and how often they fail.

In: `a100-80gb:8x512` (part, GPUs a node, nodes) or a cluster file in YAML. Out: a frozen `ClusterSpec`.

    parse("a100-80gb:8x512").gpus          # 4096
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import yaml

from headwater.core.errors import InputError

from .coefficients import Coefficients
from .hardware import Accelerator, accelerator, from_mapping
from .processor import Processor
from .processor import from_mapping as processor_from
from .quantities import bandwidth, count, plain, positive
from .stacks import raw as stacks_raw

SHORT = re.compile(r"^\s*([A-Za-z0-9_.-]+):(\d+)(?:x(\d+))?\s*$")
# GPU-hours between failures: Llama 3 50.7 thousand, Meta's research clusters 8.1 thousand, Epoch AI 50 thousand;
# the default is the usual range and its middle.
MTBF_HOURS = (20_000.0, 35_000.0, 50_000.0)
MTBF_LIMITS = (1.0, 1e9)
DIVISORS = ("gemm_sustained", "flash2", "memory_efficiency", "intra_efficiency")  # rates that times are divided by
LARGEST_DOMAIN = 16_384  # a pod of TPU v5p has 8,960
KEYS = (
    "name", "gpu", "gpus_per_node", "nodes", "nvlink_domain", "nic_per_node", "nic_per_gpu", "storage_bandwidth",
    "storage_node_bandwidth", "gpu_mtbf_hours", "restart_minutes", "price_per_gpu_hour", "pue", "host_watts_per_gpu",
    "all_in", "notes", "calibration", "processor",
)  # fmt: skip


@dataclass(frozen=True)
class ClusterSpec:
    """A cluster. Bandwidths in bytes/s, one direction; MTBF in GPU-hours (low, middle, high); price in USD."""

    name: str
    gpu: Accelerator
    gpus_per_node: int
    nodes: int
    domain: int
    nic_per_gpu: float
    nic_assumed: bool = False
    storage_bandwidth: float = 100e9  # aggregate of the parallel filesystem; assumed, Lustre-like
    storage_node_bandwidth: float = 2.5e9  # what one node can write; assumed
    gpu_mtbf_hours: tuple[float, float, float] = MTBF_HOURS
    restart_minutes: float = 20.0  # detect, reschedule, reload: MegaScale <10 + <15 minutes
    price_per_gpu_hour: float = 2.0
    pue: float = 1.2  # assumed
    host_watts_per_gpu: float = 300.0  # CPU, network, fans a GPU; assumed (1.2-1.4 kW an H100 all-in)
    calibration: Mapping[str, float] = field(default_factory=dict)  # constants measured here, in place of fitted ones
    processor: Processor | None = None  # a machine without accelerators, whose "GPUs" are its cores
    notes: str = ""
    all_in: tuple[float, float] = (3.0, 5.0)  # whole programme / rented GPUs: the field's rule of thumb

    @property
    def gpus(self) -> int:
        return self.gpus_per_node * self.nodes

    def with_nodes(self, nodes: int) -> ClusterSpec:
        """The same cluster with another number of nodes; InputError below one."""
        _checked_shape(self.gpus_per_node, nodes, "cluster.nodes")
        return replace(self, nodes=nodes)

    def describe(self) -> str:
        wire = f"{self.nic_per_gpu * self.gpus_per_node * 8 / 1e9:.0f} Gb/s a node"
        return f"{self.gpus:,} x {self.gpu.name} ({self.gpus_per_node} x {self.nodes}), {wire}"

    def case_fields(self) -> dict[str, float]:
        own = self.processor or Processor(process_bytes=0.0)
        return {"nic_bandwidth": self.nic_per_gpu, "domain": float(self.domain), **own.case_fields()}


def _checked_shape(per_node: int, nodes: int, where: str) -> None:
    if not 1 <= per_node <= 1024:
        raise InputError(f"{per_node} GPUs a node", where=where, mend="from 1 to 1024")
    if not 1 <= nodes <= 1_000_000:
        raise InputError(f"{nodes} nodes", where=where, mend="from 1 to 1,000,000")


def usual_network(part: Accelerator) -> float:
    """Bytes/s a GPU that clusters of this part usually have, one direction."""
    short = re.split(r"[-]", part.name)[0]
    return float(stacks_raw()["gpu_network"].get(short, 25.0)) * 1e9


def of(part: Accelerator, per_node: int, nodes: int, *, name: str = "", **known: Any) -> ClusterSpec:
    """A cluster with the usual wiring of its part for all that is not given."""
    _checked_shape(per_node, nodes, "cluster")
    known.setdefault("nic_per_gpu", usual_network(part))
    known.setdefault("price_per_gpu_hour", part.price[1])
    domain = int(known.pop("domain", 0)) or max(per_node, part.domain if part.domain > 8 else 0)
    return ClusterSpec(name or f"{part.name}:{per_node}x{nodes}", part, per_node, nodes, domain, **known)


def from_config(raw: Mapping[str, Any], where: str = "cluster") -> ClusterSpec:
    """From the fields of a cluster file; every mistake is an InputError with its field."""
    unknown = sorted(set(map(str, raw)) - set(KEYS))
    if unknown:
        raise InputError(f"unknown field {unknown[0]!r}", where=where, mend=f"known: {', '.join(KEYS)}")
    missing = [key for key in ("gpu", "gpus_per_node", "nodes") if key not in raw]
    if missing:
        raise InputError(f"{', '.join(missing)} not given", where=where, mend="a cluster has these three at least")
    gpu = raw["gpu"]
    part = from_mapping(str(gpu.get("name", "custom")), gpu) if isinstance(gpu, Mapping) else accelerator(str(gpu))
    per_node, nodes = count(raw["gpus_per_node"], f"{where}.gpus_per_node"), count(raw["nodes"], f"{where}.nodes")
    known: dict[str, Any] = {}
    if raw.get("nic_per_node") is not None and raw.get("nic_per_gpu") is not None:
        raise InputError(
            "both nic_per_node and nic_per_gpu are given", where=where, mend="keep one: they say the same thing twice"
        )
    if raw.get("nic_per_node") is not None:
        known["nic_per_gpu"] = bandwidth(raw["nic_per_node"], f"{where}.nic_per_node") / per_node
    elif raw.get("nic_per_gpu") is not None:
        known["nic_per_gpu"] = bandwidth(raw["nic_per_gpu"], f"{where}.nic_per_gpu")
    else:
        known["nic_assumed"] = True
    for key in ("storage_bandwidth", "storage_node_bandwidth"):
        if raw.get(key) is not None:
            known[key] = bandwidth(raw[key], f"{where}.{key}")
    for key, least, limit in (
        ("restart_minutes", 0.0, 1e5),
        ("price_per_gpu_hour", 0.0, 1e4),
        ("pue", 1.0, 5.0),
        ("host_watts_per_gpu", 0.0, 1e4),
    ):
        if raw.get(key) is not None:
            known[key] = positive(raw[key], f"{where}.{key}", limit=limit)
            if known[key] < least:
                raise InputError(f"{raw[key]} is below {least:g}", where=f"{where}.{key}", mend=f"{least:g} or more")
    if raw.get("notes") is not None:
        known["notes"] = " ".join(str(raw["notes"]).split())
    if raw.get("calibration") is not None:
        known["calibration"] = _measured(raw["calibration"], f"{where}.calibration")
    if raw.get("processor") is not None:
        known["processor"] = processor_from(raw["processor"], f"{where}.processor")
    if raw.get("gpu_mtbf_hours") is not None:
        known["gpu_mtbf_hours"] = _three(raw["gpu_mtbf_hours"], f"{where}.gpu_mtbf_hours")
    if raw.get("all_in") is not None:
        known["all_in"] = _two(raw["all_in"], f"{where}.all_in")
    if raw.get("nvlink_domain") is not None:
        known["domain"] = count(raw["nvlink_domain"], f"{where}.nvlink_domain")
        if known["domain"] > LARGEST_DOMAIN:
            raise InputError(
                f"{known['domain']:,} GPUs that share fast links",
                where=f"{where}.nvlink_domain",
                mend=f"at most {LARGEST_DOMAIN:,}: 8 in most nodes, 72 for NVL72",
            )
        if known["domain"] % per_node and per_node % known["domain"]:
            raise InputError(
                f"an NVLink domain of {known['domain']} and nodes of {per_node} GPUs",
                where=f"{where}.nvlink_domain",
                mend="one must divide the other",
            )
    return of(part, per_node, nodes, name=str(raw.get("name", "")), **known)


def _measured(values: Any, where: str) -> dict[str, float]:
    """Constants of the cost model by name, as `headwater plan calibrate` writes them."""
    names = {f.name for f in fields(Coefficients)}
    if not isinstance(values, Mapping) or (unknown := sorted(set(map(str, values)) - names)):
        raise InputError(
            f"unknown constant {unknown[0]!r}" if isinstance(values, Mapping) else f"{values!r} is no mapping",
            where=where,
            mend=f"known: {', '.join(sorted(names))}",
        )
    found = {str(name): plain(value, f"{where}.{name}") for name, value in values.items()}
    for name, value in found.items():
        if value < 0 or (value == 0 and name in DIVISORS):
            least = "above 0" if name in DIVISORS else "0 or more"
            raise InputError(f"{value:g} is not {least}", where=f"{where}.{name}", mend="headwater plan calibrate")
    return found


def _three(value: Any, where: str) -> tuple[float, float, float]:
    """GPU-hours between failures: low, middle and high, or the middle alone."""
    if isinstance(value, list):
        if len(value) != 3:
            raise InputError(f"{value} is not low, middle, high", where=where, mend="three numbers, or the middle one")
        low, mid, high = (positive(v, where) for v in value)
        if not low <= mid <= high:
            raise InputError(f"{value} is not in rising order", where=where, mend="low, middle, high")
    else:
        mid = positive(value, where)
        low, mid, high = mid * 0.6, mid, mid * 1.5
    least, most = MTBF_LIMITS
    if not least <= low <= high <= most:
        raise InputError(
            f"{value} GPU-hours between failures", where=where, mend=f"from {least:g} to {most:g} for one GPU"
        )
    return low, mid, high


def _two(value: Any, where: str) -> tuple[float, float]:
    """What the whole programme costs by what its GPUs cost: low and high."""
    if not isinstance(value, list) or len(value) != 2:
        raise InputError(f"{value!r} is not low and high", where=where, mend="for example [3, 5]")
    low, high = (positive(v, where, limit=100.0) for v in value)
    if not 1.0 <= low <= high:
        raise InputError(f"{value} is not from 1 upwards in rising order", where=where, mend="for example [3, 5]")
    return low, high


def parse(text: str | Path) -> ClusterSpec:
    """From `part:GPUSxNODES` or the path of a cluster file."""
    match = SHORT.match(str(text))
    if match:
        part, per_node, nodes = accelerator(match.group(1)), int(match.group(2)), int(match.group(3) or 1)
        return of(part, per_node, nodes, name=str(text).strip(), nic_assumed=True)
    path = Path(text)
    if not path.is_file():
        raise InputError(
            f"{str(text)!r} is neither a cluster file nor GPU:PER_NODExNODES",
            where="--cluster",
            mend="for example a100-80gb:8x512, or clusters/dgx-a100-8x8-ib400.yaml",
        )
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError) as error:  # ValueError: no UTF-8, or a date that there is not
        raise InputError(f"not YAML: {error}", where=str(path), mend="write `field: value` lines") from error
    if not isinstance(raw, Mapping):
        raise InputError(
            "a cluster file is a mapping of fields", where=str(path), mend="gpu, gpus_per_node, nodes, nic_per_node ..."
        )
    return from_config(raw, str(path))
