"""Why a plan is as it is, what a change would do, and how two plans differ.

what_if(plan, "nic_per_node=400Gbps->100Gbps|gpu=h100|nodes=+8")
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from headwater.core.errors import InputError

from .cluster import ClusterSpec, usual_network
from .hardware import accelerator
from .model_spec import ModelSpec
from .plan import LABELS, Plan, make_plan
from .quantities import bandwidth, count, positive
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
    if x.tp > 1:
        out.append((f"tp {x.tp // 2}, dp {x.dp * 2}", (m, t, c, replace(x, tp=x.tp // 2, dp=x.dp * 2, shard=0))))
    if x.pp > 1 and x.pp % 2 == 0:
        wider = replace(x, pp=x.pp // 2, dp=x.dp * 2, shard=0)
        if wider.pp == 1:
            wider = replace(wider, schedule="1f1b", chunks=1)
        out.append((f"pp {x.pp // 2}, dp {x.dp * 2}", (m, t, c, wider)))
    if x.pp > 1 and m.layers % (x.pp * 2 * x.chunks) == 0 and (per_rank // x.micro_batch) % x.pp == 0:
        deeper = replace(x, schedule="interleaved_1f1b", chunks=max(2, 2 * x.chunks))
        out.append((f"interleaved_1f1b x {deeper.chunks}", (m, t, c, deeper)))
    stages = [zero for zero in (x.zero - 1, x.zero + 1) if 0 <= zero <= 3 and x.dp > 1]
    out += [(f"ZeRO {zero}", (m, t, c, replace(x, zero=zero, shard=0))) for zero in stages]
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
    """`+8`, `-8` and `x2` change what is there; anything else takes its place."""
    if text[:1] in "+-" and re.fullmatch(r"[+-][0-9.eE]+", text):
        return old + float(text)
    if text[:1] in "x*":
        return old * positive(text[1:], where)
    return read(text, where)


def _apply(change: Change, key: str, text: str) -> tuple[Change, bool]:
    """One change; also whether the layout should be searched again."""
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
            replace(c, gpu=part, domain=domain, price_per_gpu_hour=part.price[1], nic_per_gpu=wire),
            x,
        ), True
    if key in ("nic_per_node", "nic_per_gpu"):
        share = c.gpus_per_node if key == "nic_per_node" else 1
        rate = _number_change(c.nic_per_gpu * share, text, where, bandwidth)
        return (m, t, replace(c, nic_per_gpu=rate / share, nic_assumed=False), x), False
    if key == "nodes":
        nodes = int(_number_change(c.nodes, text, where, count))
        if nodes < 1:
            raise InputError(f"{nodes} nodes are left", where=where, mend="at least one")
        # A batch the new ranks divide: the old one where it does, else as many samples a GPU as before.
        batch = t.global_batch
        if batch % nodes and batch * c.gpus_per_node * 8 % (nodes * c.gpus_per_node):
            batch = max(nodes, round(batch / c.nodes) * nodes)
        return (m, replace(t, global_batch=batch), c.with_nodes(nodes), x), True
    if key == "seq":
        seq = int(_number_change(t.seq, text, where, count))
        batch = max(1, round(t.global_batch * t.seq / seq))
        return (m, replace(t, seq=seq, global_batch=batch), c, x), True
    if key == "global_batch":
        return (m, replace(t, global_batch=int(_number_change(t.global_batch, text, where, count))), c, x), True
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


def what_if(plan: Plan, text: str, knobs: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """Each change of `key=new|key=old->new|...` on its own: the plan after it beside the plan before.

    `old->new` first sets the old value, so the pair compares those two. A change that moves the best layout (GPU,
    nodes, sequence, batch, precision) is searched again; the others keep the layout.
    """
    out = []
    for piece in filter(None, (part.strip() for part in text.split("|"))):
        key, _, value = piece.partition("=")
        if not value:
            raise InputError(f"{piece!r} is no change", where="--what-if", mend="write key=new or key=old->new")
        old, arrow, new = value.partition("->")
        base: Change = (plan.model, plan.train, plan.cluster, plan.layout)
        before = plan
        if arrow:
            base, again = _apply(base, key.strip(), old.strip())
            before = _settle(base, again, knobs)
            base = (before.model, before.train, before.cluster, before.layout)
        change, again = _apply(base, key.strip(), (new if arrow else value).strip())
        after = _settle(change, again, knobs)
        entry = {"change": piece, **compare(before.data, after.data)}
        if not again and key.strip().startswith("nic"):
            # The same question once more with each network at its own best layout.
            best = [_settle((p.model, p.train, p.cluster, p.layout), True, knobs) for p in (before, after)]
            entry["each_at_its_best"] = compare(best[0].data, best[1].data)
        out.append(entry)
    if not out:
        raise InputError("no change is given", where="--what-if", mend="for example nic_per_node=400Gbps->100Gbps")
    return out


def _settle(change: Change, again: bool, knobs: dict[str, Any] | None) -> Plan:
    model, train, cluster, layout = change
    if not again:
        return make_plan(model, train, cluster, layout)
    found = search(model, train, cluster, knobs=knobs, keep=1)
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
            raise InputError(f"not a plan: {'.'.join(path)} is missing", where="plan diff", mend="give plans as JSON")
        value = value[key]
    return float(value)


def compare(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    """Two plans side by side: layouts, the figures that matter, and every component of the step."""
    figures = {}
    for name, path in _COMPARED:
        before, after = _get(a, path), _get(b, path)
        figures[name] = {"before": before, "after": after, "ratio": after / before if before else None}
    ours, theirs = a["step"]["components"], b["step"]["components"]
    moved = {name: theirs.get(name, 0.0) - ours.get(name, 0.0) for name in {**ours, **theirs}}
    return {
        "before": {"cluster": a["cluster"]["describe"], "layout": a["layout"]["describe"]},
        "after": {"cluster": b["cluster"]["describe"], "layout": b["layout"]["describe"]},
        "figures": figures,
        "components_seconds": dict(sorted(moved.items(), key=lambda item: -abs(item[1]))),
    }
