"""Figures of single tensors and attention heads on disk: `RUN/tensors/*.parquet`, written while a run trains.

In: a sample a step, `{metric: {name: value}}`. Out: Parquet files with the columns step (int64), name, metric (string)
and value (double); every sample is a file of its own at first, renamed into place, so a killed process loses none that
`append` returned from. Sixteen files are joined to one, and sixteen of those again.

    writer = TensorFiles(run_dir); writer.append(50, {"grad_norm": {"lm_head.weight": 0.3}})

A step that is sampled again after a rewind or a resume replaces all that was recorded from that step on. A file's name
has the range of samples it holds and its steps, so nothing needs to be opened to know what is there. What another file
holds whole (a kill between joining files and removing them) counts for nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headwater.core.files import TEMP_PREFIX, disk_errors, temp_path

if TYPE_CHECKING:
    import pyarrow as pa

FOLDER = "tensors"
JOINED = 16
"""Files that are joined to one."""

LARGEST = JOINED**2
"""Samples in the largest files; a reader of a run of a million steps opens some hundred."""

Sample = Mapping[str, Mapping[str, float]]
"""Values by name, by metric."""


@dataclass(frozen=True, slots=True, order=True)
class TensorFile:
    """One file by its name: samples `first`..`last` as numbered by the writer, of steps `first_step`..`last_step`."""

    first: int
    last: int
    first_step: int
    last_step: int

    @property
    def name(self) -> str:
        return f"{self.first:09d}-{self.last:09d}-{self.first_step:010d}-{self.last_step:010d}.parquet"

    @property
    def samples(self) -> int:
        return self.last - self.first + 1

    @classmethod
    def parse(cls, name: str) -> TensorFile | None:
        """None for a name that is not of this kind."""
        stem, dot, suffix = name.partition(".")
        parts = stem.split("-")
        if not dot or suffix != "parquet" or len(parts) != 4 or not all(part.isdigit() for part in parts):
            return None
        return cls(*map(int, parts))

    def holds(self, other: TensorFile) -> bool:
        """Whether `other` has nothing that is not here. Of two of the same samples the one cut short is the newer."""
        if (self.first, self.last) == (other.first, other.last):
            return self.last_step <= other.last_step
        return self.first <= other.first and other.last <= self.last


def list_files(folder: Path) -> list[TensorFile]:
    """The files that count, in the order they were sampled; [] without a folder."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    found = sorted(file for name in names if (file := TensorFile.parse(name)) is not None)
    kept: list[TensorFile] = []
    for file in sorted(found, key=lambda file: (file.first, -file.last, file.last_step)):
        if not kept or not kept[-1].holds(file):
            kept.append(file)
    return kept


class TensorFiles:
    """The writer of a run's `tensors/`. One a run; of several ranks the first."""

    def __init__(self, run_dir: Path) -> None:
        self._folder = Path(run_dir) / FOLDER
        self._folder.mkdir(parents=True, exist_ok=True)
        self._files = list_files(self._folder)
        kept = {file.name for file in self._files}
        for path in self._folder.iterdir():  # what a kill left behind
            left = path.name.startswith(TEMP_PREFIX) or TensorFile.parse(path.name) is not None
            if left and path.name not in kept:
                path.unlink(missing_ok=True)

    @property
    def last_step(self) -> int:
        """The newest recorded step; -1 at first."""
        return max((file.last_step for file in self._files), default=-1)

    def append(self, step: int, sample: Sample) -> None:
        """Record a sample. DiskSpaceError on a full disk."""
        import pyarrow as pa

        if step <= self.last_step:
            self.cut_after(step - 1)
        rows = [(name, metric, value) for metric, values in sample.items() for name, value in values.items()]
        if not rows:
            return
        names, metrics, values = zip(*rows, strict=True)
        table = pa.table([[step] * len(rows), names, metrics, values], schema=_schema())
        number = self._files[-1].last + 1 if self._files else 0
        self._files.append(self._write(TensorFile(number, number, step, step), [table]))
        self._join()

    def cut_after(self, step: int) -> None:
        """Drop what was recorded of later steps: training goes on from `step`. What fails is done by the next call."""
        import pyarrow.compute as pc

        while self._files and self._files[-1].last_step > step:
            file = self._files[-1]
            kept = []
            if file.first_step <= step:
                table = self._table(file)
                table = table.filter(pc.less_equal(table["step"], step))
                if table.num_rows:
                    last = pc.max(table["step"]).as_py()
                    kept = [self._write(TensorFile(file.first, file.last, file.first_step, last), [table])]
            (self._folder / file.name).unlink(missing_ok=True)
            self._files[-1:] = kept

    def _join(self) -> None:
        """Join the newest files where there are enough of one size."""
        size = 1
        while size < LARGEST:
            tail = self._files[-JOINED:]
            if len(tail) < JOINED or any(file.samples != size for file in tail):
                return
            last_step = max(file.last_step for file in tail)
            joined = TensorFile(tail[0].first, tail[-1].last, tail[0].first_step, last_step)
            self._files[-JOINED:] = [self._write(joined, [self._table(file) for file in tail])]
            for file in tail:
                (self._folder / file.name).unlink(missing_ok=True)
            size *= JOINED

    def _table(self, file: TensorFile) -> pa.Table:
        """A file's rows; none of one that cannot be read, as a power cut can leave it: what is beside it goes on."""
        import pyarrow.parquet as pq

        try:
            return pq.read_table(self._folder / file.name, schema=_schema())
        except (OSError, ValueError):  # pyarrow's errors are ValueErrors
            return _schema().empty_table()

    def _write(self, file: TensorFile, tables: Sequence[pa.Table]) -> TensorFile:
        import pyarrow.parquet as pq

        path = self._folder / file.name
        temp = temp_path(path)
        with disk_errors(path):
            try:
                with pq.ParquetWriter(temp, tables[0].schema, compression="zstd") as writer:
                    for table in tables:
                        writer.write_table(table)
                os.replace(temp, path)
            except BaseException:
                with suppress(OSError):
                    temp.unlink()
                raise
        return file


def _schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema([("step", pa.int64()), ("name", pa.string()), ("metric", pa.string()), ("value", pa.float64())])
