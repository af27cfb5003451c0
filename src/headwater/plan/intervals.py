"""How far a prediction may be off: a half-width in log throughput, learned from cross-validated residuals.

The width grows with what the model knows worst: the share of the step in exposed traffic, in the host, in experts;
fields that were searched because nobody published them; 8- and 4-bit arithmetic. Weights are in
`data/coefficients.yaml`, fitted by `benchmarks/plan_fit.py`: 80 % of other rows of a family fall inside the interval of
a source that was seen, 80 % of the rows of a family left out inside that of one that was not.
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


def half_width(table: Array, unseen: Array) -> Array:
    """Half-width of the 80 % interval in log throughput for a table of features [cases, 6]; wider where the source of
    the run, its software and site, is none that the constants were fitted on (`unseen`, [cases])."""
    weights = raw()["interval"]
    scale = np.where(unseen, weights["unseen"], weights["seen"])
    return table @ np.array([weights[name] for name in FEATURES]) * scale
