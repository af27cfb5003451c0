"""Folders of runs that never happened, as a trainer would have left them: records, events, ledger, samples, tensors.

In: how many steps, and what shall be wrong. Out: a run's folder. The same bytes for the same arguments.

    write_run(tmp_path / "runs" / "demo", steps=2000, spike=700)
"""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import orjson

from headwater.monitor.tensor_files import TensorFiles

START = 1_790_000_000.0


def row(step: int, draw: random.Random, *, spike: int = 0, speed: float = 1.0, best: float = 1.9) -> dict[str, Any]:
    """A line of `metrics.jsonl`."""
    level = best + 6.8 * (1 + step / 40) ** -0.55
    bump = 1.6 * math.exp(-(step - spike) / 15) if spike and step >= spike else 0.0
    loss = level * (1 + 0.02 * draw.gauss(0, 1)) + bump
    seconds = (0.41 + 0.02 * draw.random() + (0.5 if draw.random() < 0.01 else 0)) / speed
    tokens = step * 65_536
    return {
        "step": step, "tokens": tokens, "time": START + step * 0.46 / speed, "loss": loss,
        "loss_sma": level + bump * 0.6, "perplexity": math.exp(loss), "bits_per_byte": loss / 3.1,
        "grad_norm": (0.4 + 3 / math.sqrt(step)) * math.exp(0.2 * draw.gauss(0, 1)) + 4 * bump,
        "clip_factor": min(1.0, 1 / (0.4 + 3 / math.sqrt(step) + 4 * bump)), "lr": 3e-3 * min(1, step / 200),
        "throughput": 65_536 / seconds, "mfu": 0.41 * speed * (1 - 0.1 * draw.random()), "gpu_util": None,
        "mem_allocated": 5.1e10 + 1e8 * math.sin(step / 50), "step_seconds": seconds,
        "forward_backward_seconds": seconds * 0.78, "optimizer_seconds": seconds * 0.09,
        "data_wait_seconds": seconds * 0.03, "checkpoint_seconds": 1.2 if step % 500 == 0 else 0.0,
        "validation_seconds": 3.0 if step % 200 == 0 else 0.0,
        "domain_tokens": {"web": int(tokens * 0.52), "代码 code": int(tokens * 0.3), "百科": int(tokens * 0.18)},
    }  # fmt: skip


def validation(step: int, best: float = 1.9) -> dict[str, Any]:
    loss = best + 0.05 + 6.8 * (1 + step / 40) ** -0.55
    parts = {"all": loss, "web": loss * 1.06, "代码 code": loss * 0.78, "百科": loss * 1.1}
    return {"val_loss": parts, "val_bits_per_byte": {name: value / 3 for name, value in parts.items()}}


def write_run(
    folder: Path,
    steps: int = 2000,
    *,
    seed: int = 0,
    spike: int = 0,
    speed: float = 1.0,
    best: float = 1.9,
    finished: bool = False,
    tensors: bool = False,
) -> Path:
    """A whole run folder."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(seed)
    lines = []
    for step in range(1, steps + 1):
        line = row(step, draw, spike=spike, speed=speed, best=best)
        if step % max(1, steps // 20) == 0:
            line |= validation(step, best)
        lines.append(orjson.dumps(line))
    (folder / "metrics.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    facts = {"model": "1.3B parameters: 24 layers, 2,048 wide", "schedule": "warm-up of 200 steps, stable, then linear"}
    record = {"steps": steps, "dataset": "665607509303e430", "tokenizer": "654107d4e8832ff9", "seed": seed}
    (folder / "run.json").write_text(json.dumps({**record, "facts": facts, "created": "2026-10-01T08:00:00+0000"}))
    mixture = {"web": 0.5, "代码 code": 0.3, "百科": 0.2}
    order = {"phase": "main", "seq_len": 2048, "global_batch": 32, "mixture": mixture, "rope_theta": None}
    entries: list[dict[str, Any]] = [{"number": 0, "kind": "order", "step": 1, "at": 0, "data": order}]
    events: list[dict[str, Any]] = [{"time": START, "event": "started", "device": "cuda", "precision": "bf16"}]
    if spike:
        evidence = {"loss": 6.04, "level": 3.03, "score": 9.2}
        alert = {"detector": "loss_spike", "severity": "critical", "step": spike + 1, "evidence": evidence}
        alert["message"] = "loss 6.040, at a level of 3.031 before"
        events.append({"time": START + spike * 0.46, "event": "alert", **alert})
        skip = {"domain": "web", "draws": list(range(32))}
        entries.append({"number": 1, "kind": "skip", "step": spike + 2, "at": spike + 1, "data": skip})
        lower = {"factor": 0.5, "until": spike + 300}
        entries.append({"number": 2, "kind": "lr", "step": spike + 2, "at": spike + 1, "data": lower})
    half = steps // 2
    events.append({"time": START + half * 0.46 / speed + 30, "event": "resumed", "step": half, "records_dropped": 12})
    if finished:
        events.append({"time": START + steps * 0.46 / speed, "event": "finished", "step": steps, "seconds": 100.0})
        (folder / "final.json").write_text(json.dumps({"checkpoint": f"step-{steps:08d}", "step": steps}))
    for name, items in (("events", events), ("ledger", entries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(item, ensure_ascii=False) + "\n" for item in items))
    samples = [
        {"step": half, "prompt": "def main(", "text": "args: list[str]) -> int:\n    return run(args)"},
        {"step": steps, "prompt": "山高水长,", "text": "清风徐来。白露横江,水光接天。"},
    ]
    (folder / "samples.jsonl").write_text("".join(json.dumps(item, ensure_ascii=False) + "\n" for item in samples))
    if tensors:
        write_tensors(folder, steps, draw, spike)
    (folder / "recipe.yaml").write_text(f"schema: 1\nname: {folder.name}\ntrain:\n  steps: {steps}\n", "utf-8")
    return folder


def write_tensors(folder: Path, steps: int, draw: random.Random, spike: int = 0, layers: int = 12) -> None:
    """Samples of every tensor and head, sixty of them over the run."""
    kinds = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj"]
    kinds += ["mlp.up_proj", "mlp.down_proj", "input_layernorm"]
    names = [
        "model.embed_tokens.weight",
        *(f"model.layers.{layer}.{kind}.weight" for layer in range(layers) for kind in kinds),
    ]
    names += ["model.norm.weight", "lm_head.weight"]
    writer = TensorFiles(folder)
    for step in range(max(1, steps // 60), steps + 1, max(1, steps // 60)):
        hot = 8 * math.exp(-abs(step - spike) / 60) if spike else 0.0
        sample: dict[str, dict[str, float]] = {"grad_norm": {}, "update_ratio": {}, "head_entropy": {}}
        for place, name in enumerate(names):
            size = 0.02 * (1 + 3 * (place % 8 == 2)) * (1 + hot * (place / len(names)) ** 2) * (1 + 40 / step)
            sample["grad_norm"][name] = size * math.exp(0.2 * draw.gauss(0, 1))
            sample["update_ratio"][name] = 1e-3 * math.exp(0.15 * draw.gauss(0, 1)) * (1 + 2 * (place % 8 == 7))
        for layer in range(layers):
            for head in range(8):
                level = 0.35 + 0.04 * layer + 0.02 * head - 0.25 * (layer == 3 and head == 5) * min(1, step / steps * 2)
                sample["head_entropy"][f"layers.{layer}.head.{head}"] = level + 0.02 * draw.gauss(0, 1)
        writer.append(step, sample)
