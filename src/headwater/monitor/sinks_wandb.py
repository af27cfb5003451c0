"""Weights & Biases, where its package is installed and the recipe asks for it.

In: records by metric key. Out: a run of the same name there, or with `mode: offline` a folder `RUN/wandb` that
`wandb sync` sends later. The record stays `metrics.jsonl`: nothing is read back. A run that goes on goes on there too.

    WandbSink(WandbConfig(enabled=True, mode="offline"), run_dir, "run-1")
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headwater.core.errors import UserError
from headwater.core.jsonl import parse_json
from headwater.monitor.config import WandbConfig

INIT_SECONDS, FINISH_SECONDS = 30.0, 60.0
"""So long a run waits for a server that does not answer, at its start and at its end."""


class WandbSink:
    """One run there. UserError if the package is not installed."""

    name = "wandb"

    def __init__(self, config: WandbConfig, run_dir: Path, run_id: str) -> None:
        try:
            import wandb
        except ImportError as error:
            raise UserError(
                "the package wandb is not installed",
                where="monitor.wandb.enabled",
                mend="pip install 'headwater[wandb]', or set monitor.wandb.enabled to false",
            ) from error
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # faults of wandb are not ours to send anywhere
        self._run = wandb.init(
            project=config.project,
            entity=config.entity,
            id=_id_of(run_dir),
            name=run_id,
            dir=str(run_dir),
            mode=config.mode,
            resume="allow",
            config=_facts(run_dir),
            settings=wandb.Settings(
                silent=True, console="off", disable_git=True, save_code=False, init_timeout=INIT_SECONDS
            ),
        )
        # Steps are a figure like others there: its own count never goes back, and a run that is rewound does.
        self._run.define_metric("*", step_metric="step")

    def write(self, record: Mapping[str, Any]) -> None:
        self._run.log(dict(_flat(record)))

    def close(self, *, failed: bool = False) -> None:
        """TimeoutError if not all is sent in time; what is left lies in `RUN/wandb`, for `wandb sync`."""
        end = threading.Thread(target=self._run.finish, kwargs={"exit_code": int(failed)}, daemon=True)
        end.start()
        end.join(FINISH_SECONDS)
        if end.is_alive():
            raise TimeoutError(f"not all is sent after {FINISH_SECONDS:g} s; `wandb sync` sends the rest")


def _id_of(run_dir: Path) -> str:
    """The same for every process of a run, and no other run's."""
    return hashlib.sha256(f"{run_dir.absolute()}{_facts(run_dir).get('created', '')}".encode()).hexdigest()[:16]


def _facts(run_dir: Path) -> dict[str, Any]:
    """What is trained on what, from `run.json`; nothing where there is none."""
    try:
        facts = parse_json((run_dir / "run.json").read_bytes())
        return facts if isinstance(facts, dict) else {}
    except (OSError, ValueError):
        return {}


def _flat(record: Mapping[str, Any], before: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in record.items():
        if isinstance(value, Mapping):
            found += _flat(value, f"{before}{key}/")
        elif value is not None:
            found.append((f"{before}{key}", value))
    return found
