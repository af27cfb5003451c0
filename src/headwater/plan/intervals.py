"""How far a prediction may be off: a half-width in log throughput, learned from cross-validated residuals.

The width grows with what the model knows worst: the share of the step in exposed traffic, in the host, in experts;
fields that were searched because nobody published them; 8- and 4-bit arithmetic. Weights are in
`data/coefficients.yaml`, fitted by `benchmarks/plan_fit.py` so that 80 % of the rows of families left out fall inside.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .cases import Array
from .coefficients import raw

FEATURES = ("constant", "communication", "host", "moe", "searched", "quantised")
NORMAL_80 = 1.2816  # 10th and 90th percentile of a normal, in standard deviations


def features(parts: Mapping[str, Array], total: Array, moe: Array, searched: Array, quantised: Array) -> Array:
    """The features of each case, shape [cases, 6], in the order of FEATURES."""
    traffic = sum(parts[name] for name in ("tp", "cp", "ep", "dp", "pp")) / total
    host = (parts["host"] + parts["fixed"]) / total
    columns = np.broadcast_arrays(1.0 + 0.0 * total, traffic, host, moe * 1.0, searched * 1.0, (quantised > 0) * 1.0)
    return np.stack(columns, axis=-1)


def half_width(table: Array) -> Array:
    """Half-width of the 80 % interval in log throughput for a table of features [cases, 6]."""
    weights = raw()["interval"]
    return table @ np.array([weights[name] for name in FEATURES]) * weights["scale"]
