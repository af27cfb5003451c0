"""What cleaning changed in each document and what every quality rule said of it, in a file beside the documents.

`attributes/quality/SHARD.parquet` has one row a document of the shard, in order: `row`, `edits` (JSON: how many lines
of boilerplate, runs of mojibake and personal data of each kind), and a column of scores a rule, null where the rule was
not asked. So a limit can be chosen from the corpus itself, and what stays has its evidence too.

    pyarrow.parquet.read_table("attributes/quality/web-00000.parquet", columns=["gopher.word-length"])
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from headwater.core.parquet import parquet_writer
from headwater.curate.quality.config import QualityConfig
from headwater.curate.sift import Batch, rule_names


def quality_name(shard: str) -> str:
    return f"attributes/quality/{shard}.parquet"


class QualityWriter:
    """Writes the rows of one shard, a batch at a time; `edits` sums them: kind -> [documents, number]."""

    def __init__(self, path: Path, config: QualityConfig) -> None:
        self.edits: dict[str, list[int]] = {}
        self._names = rule_names(config)
        fields: list[Any] = [("row", pa.uint32()), ("edits", pa.string())]
        self._schema = pa.schema(fields + [(name, pa.float32()) for name in self._names])
        self._writer = parquet_writer(path, self._schema, dictionaries=["edits"])
        self._rows = 0

    def add(self, batch: Batch) -> None:
        for found in batch.cleaned:
            for kind, number in found.edits.items():
                row = self.edits.setdefault(kind, [0, 0])
                row[0] += 1
                row[1] += number
        count = len(batch.cleaned)
        edits = [orjson.dumps(found.edits, option=orjson.OPT_SORT_KEYS).decode() for found in batch.cleaned]
        columns = [pa.array(np.arange(self._rows, self._rows + count, dtype=np.uint32)), pa.array(edits)]
        columns += [pa.array(batch.scores[name], from_pandas=True) for name in self._names]  # NaN becomes null
        self._writer.write_table(pa.table(columns, schema=self._schema))
        self._rows += count

    def __enter__(self) -> QualityWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._writer.close()
