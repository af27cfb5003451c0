"""TensorBoard's event files, written without TensorBoard.

In: records by metric key. Out: `RUN/tensorboard/events.out.tfevents...`, a file a process, each line of the record one
event whose values have the metrics' keys as tags (`val_loss/code` where there are labels). Each event is one write, so
a killed process loses none. A run that goes on, or goes back, tells TensorBoard to drop what it showed of the steps
that are trained again.

    TensorBoardSink(run_dir / "tensorboard", done=0).write({"step": 1, "loss": 8.3})     # tensorboard --logdir RUN
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from headwater.core.files import disk_errors
from headwater.core.tfrecord import frame, integer_field, message_field, varint

FOLDER = "tensorboard"
NOT_DRAWN = frozenset({"step", "time"})
"""What is an axis of every curve already."""

_START = 1
"""SessionLog.START: TensorBoard forgets steps from this event's on."""


class TensorBoardSink:
    """One event file. `done`: steps that lie behind the run."""

    name = "tensorboard"

    def __init__(self, folder: Path, done: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._next: int = done + 1
        now = time.time()
        name = f"events.out.tfevents.{int(now * 1e6):020d}.{socket.gethostname()}.{os.getpid()}"
        self._file = open(folder / name, "xb", buffering=0)  # noqa: SIM115 - closed by `close`
        try:
            self._append(_event(now, 0, message_field(3, b"brain.Event:2")))
            self._begin(now, self._next)
        except BaseException:
            self._file.close()
            raise

    def write(self, record: Mapping[str, Any]) -> None:
        """Values that are no numbers are left out; NaN and infinities are drawn as TensorBoard does."""
        seconds, step = float(record.get("time", time.time())), int(record["step"])
        if step < self._next:  # the run went back
            self._begin(seconds, step)
        summary = b"".join(
            message_field(1, message_field(1, tag.encode("utf-8", "replace")) + _float(2, value))
            for tag, value in _scalars(record)
        )
        self._append(_event(seconds, step, message_field(5, summary)))
        self._next = step + 1

    def _begin(self, seconds: float, step: int) -> None:
        """Let TensorBoard forget what it showed of `step` and later ones."""
        self._append(_event(seconds, step, message_field(7, integer_field(1, _START))))
        self._next = step

    def _append(self, event: bytes) -> None:
        before, data = self._file.tell(), frame(event)
        with disk_errors(Path(self._file.name)):
            try:
                written = self._file.write(data)
                if written != len(data):
                    raise OSError(errno.ENOSPC, "only a part of an event could be written")
            except OSError:
                self._file.seek(before)
                self._file.truncate()  # a torn record would hide all that follow
                raise

    def close(self, *, failed: bool = False) -> None:
        self._file.close()


def _event(seconds: float, step: int, what: bytes) -> bytes:
    """tensorflow.Event: wall_time = 1, step = 2, then one of file_version = 3, summary = 5, session_log = 7."""
    return varint(1 << 3 | 1) + struct.pack("<d", seconds) + integer_field(2, step) + what


def _float(number: int, value: float) -> bytes:
    return varint(number << 3 | 5) + struct.pack("<f", _in_single_precision(value))


def _in_single_precision(value: float) -> float:
    """Values beyond its range become infinities, as in arithmetic; struct would refuse them."""
    try:
        struct.pack("<f", value)
        return value
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def _scalars(record: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, float]]:
    for key, value in record.items():
        if isinstance(value, Mapping):
            yield from _scalars(value, f"{before}{key}/")
        elif isinstance(value, int | float) and not isinstance(value, bool) and (before or key not in NOT_DRAWN):
            yield f"{before}{key}", float(value)
