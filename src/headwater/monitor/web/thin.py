"""A long series as few points, without losing a spike: each bucket's least and greatest value stay, and its mean.

In: arrays of a record. Out: indices and means. Pure; numpy is imported when it is called.

    extremes(values, 800)       # indices, rising, at most about 800
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    Floats = NDArray[numpy.float64]
    Indices = NDArray[numpy.int64]


def extremes(values: Floats, limit: int) -> Indices:
    """Indices of at most `limit` finite values, rising: all of them, or each bucket's least and greatest, and both
    ends."""
    import numpy

    count = len(values)
    if count <= limit:
        return numpy.arange(count)
    table, width = _buckets(values, max(1, (limit - 2) // 2))
    starts = numpy.arange(len(table)) * width
    kept = numpy.concatenate(([0, count - 1], starts + table.argmin(axis=1), starts + table.argmax(axis=1)))
    return numpy.unique(numpy.minimum(kept, count - 1))


def means(values: Floats, limit: int) -> tuple[Indices, Floats]:
    """(Index in the middle of each bucket, mean of the bucket) of at most `limit` buckets of finite values."""
    import numpy

    count = len(values)
    if count <= limit:
        return numpy.arange(count), values
    width = -(-count // limit)
    starts = numpy.arange(0, count, width)
    ends = numpy.minimum(starts + width, count)
    return (starts + ends - 1) // 2, numpy.add.reduceat(values, starts) / (ends - starts)


def _buckets(values: Floats, buckets: int) -> tuple[Floats, int]:
    """The values as rows of equal width, the last one filled up by its last value."""
    import numpy

    width = -(-len(values) // buckets)
    rows = -(-len(values) // width)
    padded = numpy.concatenate((values, numpy.full(rows * width - len(values), values[-1])))
    return padded.reshape(rows, width), width
