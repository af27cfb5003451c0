"""`headwater plan calibrate` and `headwater plan compare RUN`: the planner and this machine.

The measuring is done by `headwater.simulate`; its file is a cluster file, for any `--cluster`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from headwater.cli.common import finish, make_reporter, write_named
from headwater.core.errors import HeadwaterError, UserError

MEASURED = ("fp32", "tf32", "bf16", "fp16", "fp8")
"""Precisions that a machine can be calibrated in."""

SMALL, MIDDLE, LARGE = (128, 4, 4, 344), (192, 6, 6, 512), (256, 8, 8, 704)
"""Width, layers, heads and feed-forward width."""

OWN_RUNS: dict[str, tuple[tuple[int, ...], dict[str, int]]] = {
    "small": (SMALL, {}),
    "large": (LARGE, {}),
    "data": (MIDDLE, {"parallel.dp_replicate": 2}),
    "tensor": (MIDDLE, {"parallel.tp": 2}),
}
"""Runs that show what a training process takes: two sizes in one, and two ranks."""


def calibrate(precision: str | None, output: Path | None, *, as_json: bool, quiet: bool) -> None:
    """Measure the machine and write, or print, its file."""
    from headwater.parallel.precision import choose_precision
    from headwater.simulate.calibrate import as_yaml
    from headwater.simulate.calibrate import calibrate as measure
    from headwater.simulate.process import with_messages, with_processor
    from headwater.train.devices import choose_device

    if precision is not None and precision not in MEASURED:
        raise UserError(
            f"{precision!r} is not measured", where="--precision", mend=f"one of {', '.join(MEASURED)}, or leave it out"
        )
    if output is not None:
        if output.is_dir():
            raise UserError("a folder, and a file is to be written", where=str(output), mend="name a file in it")
        output.parent.mkdir(parents=True, exist_ok=True)  # here, not after minutes of measuring
    device = choose_device("auto")
    chosen, why = choose_precision(precision or "auto", device, 256)
    make_reporter(quiet=quiet).info(f"measuring {device} in {chosen} ({why}); best while nothing else runs")
    place = (output or Path("machine.yaml")).resolve().parent
    machine = measure(chosen, device, place)
    if device.type == "cpu":
        with tempfile.TemporaryDirectory(dir=place, prefix=".tmp-calibrate-") as folder:
            runs = own_runs(Path(folder), chosen, int(machine["gpus_per_node"]))
            machine = with_messages(with_processor(machine, runs), runs)
    text = as_yaml(machine)
    if output is not None:
        write_named(output, text.encode())
        text = f"{output}: {machine['notes']}"
    finish(machine, text.rstrip("\n"), as_json=as_json)


def own_runs(
    folder: Path, precision: str, ranks: int, runs: Mapping[str, tuple[tuple[int, ...], dict[str, int]]] = OWN_RUNS
) -> list[Path]:
    """Small trainings by this program's own commands, on the text of Python's standard library; of two ranks only where
    the machine can work for two. HeadwaterError with what a failed one said."""
    sources = sorted(Path(textwrap.__file__).parent.glob("*.py"))[:100]
    rows = [json.dumps({"text": source.read_text("utf-8", "replace")}) for source in sources]
    (folder / "text.jsonl").write_text("\n".join(rows) + "\n", "utf-8")
    _command(folder, "tokenize", "text.jsonl", "--out", "packed", "--set", "tokenizer.vocab_size=4096")
    done = []
    for name, ((width, layers, heads, inner), layout) in runs.items():
        if layout and ranks < 2:
            continue
        fields = {
            "model.hidden_size": width,
            "model.num_hidden_layers": layers,
            "model.num_attention_heads": heads,
            "model.intermediate_size": inner,
            "model.max_position_embeddings": 256,
            "train.seq_len": 256,
            "train.global_batch": 16,
            "train.steps": 10,
            "train.precision": precision,
            "train.optimizer.name": "adamw",
            **layout,
        }
        settings = [word for field, value in fields.items() for word in ("--set", f"{field}={value}")]
        _command(folder, "train", "packed", "--out", name, "--quiet", *settings)
        done.append(folder / name)
    return done


def _command(folder: Path, *words: str) -> None:
    from headwater.parallel.rank_process import die_with_parent

    command = [sys.executable, "-m", "headwater.cli.main", *words]
    done = subprocess.run(  # a command ends with this process, however that ends
        command, cwd=folder, capture_output=True, text=True, check=False, preexec_fn=die_with_parent
    )
    if done.returncode:
        raise HeadwaterError(
            f"a small training failed: {(done.stderr or done.stdout).strip()[-500:]}",
            where=f"headwater {words[0]}",
            mend="run headwater check on this machine first",
        )


def compare(runs: Sequence[Path], cluster: str | None, *, as_json: bool) -> None:
    """Predicted beside measured for a run."""
    from headwater.plan import parse_cluster
    from headwater.simulate.runs import compare_run

    if len(runs) != 1:
        raise UserError(f"{len(runs)} runs are given", where="headwater plan compare", mend="name one run's folder")
    if cluster is None:
        raise UserError(
            "no machine is named", where="--cluster", mend="measure it: headwater plan calibrate --output machine.yaml"
        )
    beside = compare_run(runs[0], parse_cluster(cluster))
    finish(beside.values(), beside.text(), as_json=as_json)
