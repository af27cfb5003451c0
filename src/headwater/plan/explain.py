"""Why a plan is as it is, what a change would do, and how two plans differ.

what_if(plan, "nic_per_node=400Gbps->100Gbps|gpu=h100|nodes=+8")
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from headwater.core.errors import InputError

from .candidates import divisors
from .cluster import ClusterSpec, usual_network
from .hardware import accelerator
from .model_spec import ModelSpec
from .plan import LABELS, Plan, make_plan
from .quantities import bandwidth, count, human, positive
from .search import search
from .train_spec import Layout, TrainSpec

Change = tuple[ModelSpec, TrainSpec, ClusterSpec, Layout]


def gains(plan: Plan) -> list[dict[str, Any]]:
    """What each knob would give: step seconds with one thing changed, best first. Hardware knobs say what to buy."""
    out = []
    for name, change in _knobs(plan):
        try:
            other = make_plan(*change)
        except InputError:
            continue
        out.append(
            {
                "knob": name,
                "step_seconds": other.step_seconds,
                "gain": _speed(other) / _speed(plan) - 1.0,
                "fits": other.fits,
                "device_gib": other.data["memory"]["device_bytes"] / 2**30,
            }
        )
    return sorted(out, key=lambda entry: (-entry["gain"], entry["knob"]))


def _speed(plan: Plan) -> float:
    return float(plan.data["throughput"]["tokens_per_second_per_gpu"])


def _knobs(plan: Plan) -> list[tuple[str, Change]]:
    m, t, c, x = plan.model, plan.train, plan.cluster, plan.layout
    gpu = c.gpu
    out: list[tuple[str, Change]] = [
        ("network x 2", (m, t, replace(c, nic_per_gpu=2 * c.nic_per_gpu), x)),
        ("network / 2", (m, t, replace(c, nic_per_gpu=c.nic_per_gpu / 2), x)),
        ("NVLink x 2", (m, t, replace(c, gpu=replace(gpu, intra_bandwidth=2 * gpu.intra_bandwidth)), x)),
        (
            "memory bandwidth x 1.5",
            (m, t, replace(c, gpu=replace(gpu, memory_bandwidth=1.5 * gpu.memory_bandwidth)), x),
        ),
        ("global batch x 2", (m, replace(t, global_batch=2 * t.global_batch), c, x)),
    ]
    if x.recompute > 0 or x.recompute_light:
        out.append(("no recompute", (m, t, c, replace(x, recompute=0.0, recompute_light=False))))
    if not x.recompute_light:
        out.append(("selective recompute", (m, t, c, replace(x, recompute=0.0, recompute_light=True))))
    if x.recompute < 1:
        out.append(("full recompute", (m, t, c, replace(x, recompute=1.0, recompute_light=False))))
    per_rank = t.global_batch // x.dp
    sizes = [b for b in (x.micro_batch * 2, x.micro_batch // 2) if b >= 1 and per_rank % b == 0]
    out += [(f"micro-batch {b}", (m, t, c, replace(x, micro_batch=b))) for b in sizes]
    part = x.shard if x.shard < x.dp else 0  # hybrid sharding stays; else all ranks share, however many
    halved = {
        "tp": replace(x, tp=x.tp // 2 or 1),
        "pp": replace(x, pp=x.pp // 2 or 1),
        "cp": replace(x, cp=x.cp // 2 or 1),
    }
    for name, less in halved.items():
        size = getattr(x, name)
        if size % 2 == 0:
            wider = replace(less, dp=x.dp * 2, shard=part)
            if wider.pp == 1:
                wider = replace(wider, schedule="1f1b", chunks=1)
            out.append((f"{name} {size // 2}, dp {x.dp * 2}", (m, t, c, wider)))
    if x.dp % 2 == 0:
        fewer = replace(x, dp=x.dp // 2, shard=part if part <= x.dp // 2 and x.dp // 2 % max(part, 1) == 0 else 0)
        out.append((f"tp {x.tp * 2}, dp {fewer.dp}", (m, t, c, replace(fewer, tp=x.tp * 2))))
        if t.seq % (4 * x.cp) == 0:  # the trainer's context parallelism folds a sequence in two
            out.append((f"cp {x.cp * 2}, dp {fewer.dp}", (m, t, c, replace(fewer, cp=x.cp * 2))))
    m_here = per_rank // x.micro_batch
    if x.pp > 1 and m.layers % (x.pp * 2 * x.chunks) == 0 and m_here % x.pp == 0:
        deeper = replace(x, schedule="interleaved_1f1b", chunks=max(2, 2 * x.chunks))
        out.append((f"interleaved_1f1b x {deeper.chunks}", (m, t, c, deeper)))
    if x.pp > 1 and x.schedule != "zbv" and m.layers % (2 * x.pp) == 0 and m_here >= 2 * x.pp:
        out.append(("zbv", (m, t, c, replace(x, schedule="zbv", chunks=2))))
    over = f" over {x.shard}" if part else ""
    stages = [zero for zero in (x.zero - 1, x.zero + 1) if 0 <= zero <= 3 and x.dp > 1]
    out += [(f"ZeRO {zero}{over if zero else ''}", (m, t, c, replace(x, zero=zero))) for zero in stages]
    if part and x.zero:
        out.append((f"ZeRO {x.zero} over {x.dp}", (m, t, c, replace(x, shard=0))))
    if t.stack == "headwater":
        out.append(("train.compile", (m, replace(t, stack="headwater-compiled"), c, x)))
    return out


def why(plan: Plan, runner_up: Plan | None = None) -> dict[str, Any]:
    """What binds memory and time, the gain of each knob, and by which components the runner-up lost."""
    step, held = plan.data["step"], plan.data["memory"]
    order = sorted(step["components"], key=lambda name: -step["components"][name])
    out: dict[str, Any] = {
        "time_binds": order[0],
        "time_order": [
            {
                "component": name,
                "label": LABELS[name],
                "seconds": step["components"][name],
                "share": step["shares"][name],
            }
            for name in order
        ],
        "memory_binds": held["binds"],
        "memory_share": held["share_of_device"],
        "gains": gains(plan),
    }
    if runner_up is not None:
        theirs = runner_up.data["step"]["components"]
        deltas = {name: theirs[name] - step["components"][name] for name in theirs}
        out["runner_up"] = {
            "layout": runner_up.layout.describe(),
            "step_seconds": runner_up.step_seconds,
            "slower_by": runner_up.step_seconds / plan.step_seconds - 1.0,
            "components": dict(sorted(deltas.items(), key=lambda item: -abs(item[1]))),
        }
    return out


def _number_change(old: float, text: str, where: str, read: Callable[[object, str], float]) -> float:
    """`+8`, `-8` (with the unit where there is one) and `x2` change what is there; anything else takes its place."""
    if text[:1] in ("x", "*"):
        return old * positive(text[1:], where)
    if text[:1] not in ("+", "-"):
        return read(text, where)
    step = 0.0 if re.fullmatch(r"[+-]0+", text) else read(text[1:], where)
    new = old + step if text[0] == "+" else old - step
    if not new > 0:
        raise InputError(f"{text} leaves nothing", where=where, mend="take away less than there is")
    return new


def _whole_change(old: int, text: str, where: str) -> int:
    return count(_number_change(old, text, where, count), where)


def _alike_batch(batch: float, train: TrainSpec, before: int, after: int) -> int:
    """Samples near `batch` whose factors serve `after` GPUs as the batch there is serves `before`.

    A batch of odd factors would leave few layouts, and what is compared would be the factors.
    """
    shared = before // math.gcd(train.global_batch, before)  # GPUs at least that work on a sample together
    unit = after // math.gcd(after, shared)
    for several in (8, 4, 2, 1):
        near = max(1, round(batch / (unit * several))) * unit * several
        if abs(near / batch - 1.0) <= 0.05:
            return near
    return (
        max(1, round(batch / unit)) * unit if batch > unit else max(d for d in divisors(unit) if d <= max(1.0, batch))
    )


def _apply(change: Change, key: str, text: str) -> tuple[Change, bool]:
    """One change; also whether it moves the best layout."""
    m, t, c, x = change
    where = f"--what-if {key}"
    if key == "gpu":
        part = accelerator(text)
        domain = c.gpus_per_node if part.domain <= 8 else max(part.domain, c.gpus_per_node)
        # A network that was only assumed is assumed anew for the part; one that was given stays.
        wire = usual_network(part) if c.nic_assumed else c.nic_per_gpu
        return (
            m,
            t,
            replace(c, gpu=part, domain=domain, price_per_gpu_hour=part.price[1], nic_per_gpu=wire, calibration={}),
            x,
        ), True
    if key in ("nic_per_node", "nic_per_gpu"):
        share = c.gpus_per_node if key == "nic_per_node" else 1
        rate = _number_change(c.nic_per_gpu * share, text, where, bandwidth)
        return (m, t, replace(c, nic_per_gpu=rate / share, nic_assumed=False), x), False
    if key == "nodes":
        nodes = c.with_nodes(_whole_change(c.nodes, text, where)).nodes
        batch = _alike_batch(t.global_batch, t, c.gpus, nodes * c.gpus_per_node)
        dp = x.dp * nodes // c.nodes  # where the layout is kept, more nodes are more data-parallel ranks
        wider = replace(x, dp=max(1, dp), shard=x.shard if x.shard < x.dp and dp % x.shard == 0 else 0)
        return (m, replace(t, global_batch=batch), c.with_nodes(nodes), wider), True
    if key == "seq":
        seq = _whole_change(t.seq, text, where)
        batch = _alike_batch(t.global_batch * t.seq / seq, t, c.gpus, c.gpus)  # as many tokens a step
        return (m, replace(t, seq=seq, global_batch=batch), c, x), True
    if key == "global_batch":
        return (m, replace(t, global_batch=_whole_change(t.global_batch, text, where)), c, x), True
    if key == "tokens":
        return (m, replace(t, tokens=_number_change(t.tokens, text, where, positive)), c, x), False
    if key == "precision":
        return (m, replace(t, precision=text), c, x), True
    if key == "price":
        price = _number_change(c.price_per_gpu_hour, text, where, positive)
        return (m, t, replace(c, price_per_gpu_hour=price), x), False
    if key == "mtbf":
        middle = _number_change(c.gpu_mtbf_hours[1], text, where, positive)
        ratio = middle / c.gpu_mtbf_hours[1]
        low, mid, high = (hours * ratio for hours in c.gpu_mtbf_hours)
        return (m, t, replace(c, gpu_mtbf_hours=(low, mid, high)), x), False
    if key == "storage":
        rate = _number_change(c.storage_bandwidth, text, where, bandwidth)
        return (m, t, replace(c, storage_bandwidth=rate), x), False
    known = "gpu, nic_per_node, nic_per_gpu, nodes, seq, global_batch, tokens, precision, price, mtbf, storage"
    raise InputError(f"unknown change {key!r}", where="--what-if", mend=f"one of {known}")


def what_if(
    plan: Plan,
    text: str,
    knobs: Mapping[str, Any] | None = None,
    *,
    only_runnable: bool = True,
    keep_layout: bool = False,
) -> list[dict[str, Any]]:
    """Each change of `key=new|key=old->new|...` on its own: the plan after it beside the plan before.

    `old->new` first sets the old value, so the pair compares those two. A change that moves the best layout (GPU,
    nodes, sequence, batch, precision) is searched again with `knobs` held, the others keep the layout; `keep_layout`
    keeps it always. Where it was kept, `each_at_its_best` compares the best layout of each side.
    """
    held = {name: value for name, value in (knobs or {}).items() if name != "nodes"}  # the plan has its nodes
    settle = functools.partial(_settle, knobs=held, only_runnable=only_runnable)
    out = []
    for piece in filter(None, (part.strip() for part in text.split("|"))):
        key, _, value = piece.partition("=")
        if not value:
            raise InputError(f"{piece!r} is no change", where="--what-if", mend="write key=new or key=old->new")
        old, arrow, new = value.partition("->")
        base: Change = (plan.model, plan.train, plan.cluster, plan.layout)
        before = plan
        if arrow:
            base, moves = _apply(base, key.strip(), old.strip())
            before = settle(base, moves and not keep_layout)
            base = (before.model, before.train, before.cluster, before.layout)
        change, moves = _apply(base, key.strip(), (new if arrow else value).strip())
        after = settle(change, moves and not keep_layout)
        entry = {"change": piece, **compare(before.data, after.data)}
        if key.strip().startswith("nic") or (moves and keep_layout):
            # The same question once more with each side at its own best layout.
            best = [settle((p.model, p.train, p.cluster, p.layout), True) for p in (before, after)]
            entry["each_at_its_best"] = compare(best[0].data, best[1].data)
        out.append(entry)
    if not out:
        raise InputError("no change is given", where="--what-if", mend="for example nic_per_node=400Gbps->100Gbps")
    return out


def _settle(change: Change, again: bool, knobs: Mapping[str, Any], only_runnable: bool) -> Plan:
    model, train, cluster, layout = change
    if not again:
        return make_plan(model, train, cluster, layout)
    found = search(model, train, cluster, knobs=knobs, keep=1, only_runnable=only_runnable)
    if not found.layouts:
        raise InputError(found.miss, where="--what-if", mend="another value")
    return make_plan(model, train, cluster, found.layouts[0])


_COMPARED = (
    ("step_seconds", ("step", "seconds")),
    ("tokens_per_second", ("throughput", "tokens_per_second")),
    ("tokens_per_second_per_gpu", ("throughput", "tokens_per_second_per_gpu")),
    ("mfu", ("throughput", "mfu")),
    ("days_p50", ("days", "p50")),
    ("rented_dollars", ("cost", "p50", "rented")),
    ("device_bytes", ("memory", "device_bytes")),
    ("bubble_share", ("step", "bubble_share")),
    ("exposed_traffic_share", ("step", "exposed_traffic_share")),
    ("goodput", ("failures", "goodput")),
    ("energy_kwh", ("cost", "p50", "energy_kwh")),
)


def _get(data: dict[str, Any], path: tuple[str, ...]) -> float:
    value: Any = data
    for key in path:
        if not isinstance(value, dict) or key not in value:
            raise InputError(
                f"not a plan: {'.'.join(path)} is missing", where="plan diff", mend="save plans with --json"
            )
        value = value[key]
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"not a plan: {'.'.join(path)} is {value!r}", where="plan diff", mend="save plans with --json"
        ) from error


def _get_parts(data: dict[str, Any]) -> dict[str, float]:
    parts = data["step"].get("components")
    return {name: _get(data, ("step", "components", name)) for name in parts} if isinstance(parts, dict) else {}


def _side(data: dict[str, Any]) -> dict[str, str]:
    """What is compared, in words."""
    try:
        work = data["train"]
        batch = f"{work['global_batch']:,} x {work['seq']:,} tokens a step, {work['precision']}"
        model = f"{data['model']['name']}, {human(data['model']['parameters'])} parameters"
        said = {"cluster": data["cluster"]["describe"], "layout": data["layout"]["describe"]}
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"not a plan: {error} is missing", where="plan diff", mend="save plans with --json") from error
    return {"model": model, "work": batch, **said}


def compare(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    """Two plans side by side: what they are of, the figures that matter, and every component of the step."""
    figures = {}
    for name, path in _COMPARED:
        before, after = _get(a, path), _get(b, path)
        figures[name] = {"before": before, "after": after, "ratio": after / before if before else None}
    ours, theirs = (_get_parts(data) for data in (a, b))
    moved = {name: theirs.get(name, 0.0) - ours.get(name, 0.0) for name in {**ours, **theirs}}
    return {
        "before": _side(a),
        "after": _side(b),
        "figures": figures,
        "components_seconds": dict(sorted(moved.items(), key=lambda item: -abs(item[1]))),
    }
