"""How far a prediction may be off: a half-width in log throughput, learned from cross-validated residuals.

The width grows with what the model knows worst: the share of the step in exposed traffic, in the host, in experts;
fields that were searched because nobody published them; 8- and 4-bit arithmetic. Weights are in
`data/coefficients.yaml`, fitted by `benchmarks/plan_fit.py`: 80 % fall inside of other rows of a source that was seen,
of the rows of a family left out where their software is named, and of all rows where the software has to be guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

import numpy as np

from .cases import Array
from .coefficients import raw

FEATURES = ("constant", "communication", "host", "moe", "searched", "quantised")


class Source(IntEnum):
    """What is known of where a run comes from: its software and site, its software, or what was usual for its part."""

    SEEN = 0
    NAMED = 1
    GUESSED = 2


NORMAL_80 = 1.2816  # 10th and 90th percentile of a normal, in standard deviations


def features(parts: Mapping[str, Array], total: Array, moe: Array, searched: Array, quantised: Array) -> Array:
    """The features of each case, shape [cases, 6], in the order of FEATURES."""
    traffic = sum(parts[name] for name in ("tp", "cp", "ep", "dp", "pp")) / total
    host = (parts["host"] + parts["fixed"]) / total
    columns = np.broadcast_arrays(1.0 + 0.0 * total, traffic, host, moe * 1.0, searched * 1.0, (quantised > 0) * 1.0)
    return np.stack(columns, axis=-1)


def half_width(table: Array, source: Array) -> Array:
    """Half-width of the 80 % interval in log throughput for a table of features [cases, 6] and what is known of each
    run's source, a `Source` [cases]."""
    weights = raw()["interval"]
    scales = np.array([weights[one.name.lower()] for one in Source])
    return table @ np.array([weights[name] for name in FEATURES]) * scales[np.asarray(source, dtype=int)]
