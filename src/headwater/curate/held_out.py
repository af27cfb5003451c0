"""What is near to validation or test leaves train.

Deduplication has compared most such pairs already; this looks again at every pair that shares a key, whatever
deduplication was asked to do, so that nothing near to held-out text is trained on because a rule was off or undone.

    rows = held_out_removals(near, buckets, texts, side)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.curate.dedup.engine import merge
from headwater.curate.dedup.kernels import small
from headwater.curate.dedup.simhash import MAX_DISTANCE
from headwater.curate.dedup.stars import propose_apart
from headwater.curate.near import HELD_OUT, REMOVAL, NearDedup, measure_of
from headwater.curate.texts import CorpusTexts


def held_out_removals(
    near: NearDedup, buckets: dict[str, Any], texts: CorpusTexts, side: NDArray[np.uint8]
) -> NDArray[Any]:
    """Documents of train that go, as rows of REMOVAL; `side` by number: 0 gone, 1 train, 2 held out. Of several
    held-out documents it is near to, the one with the highest score is named, then the first."""
    population, settings = near.population, near.settings
    compare, measure = near.scorer(texts), measure_of(near.config.dedup)
    tested = np.empty(0, np.uint64)
    found: dict[int, tuple[float, int]] = {}
    for name, bands in buckets.items():
        bits = near.bits() if name == "simhash" else np.empty(0, np.uint64)
        limit = side.size if name == "short" else settings.representatives
        for starts, members in (chunk for band in bands for chunk in band):
            places = members.size
            while True:
                out = np.empty(places, np.uint64)
                count = small(propose_apart, members.size)(
                    starts, members, side, tested, bits, MAX_DISTANCE, limit, out
                )
                if count >= 0:
                    break
                places *= 2
            pairs = np.unique(out[:count])
            if not pairs.size:
                continue
            kept = population.position_of[pairs >> np.uint64(32)].astype(np.int64)
            removed = population.position_of[pairs & np.uint64(0xFFFFFFFF)].astype(np.int64)
            scores = compare(kept, removed, measure)
            tested = merge(tested, pairs)
            for index in np.flatnonzero(scores >= settings.threshold).tolist():
                best = (-float(scores[index]), int(kept[index]))
                found[int(removed[index])] = min(best, found.get(int(removed[index]), best))
    rows = np.zeros(len(found), REMOVAL)
    for index, position in enumerate(sorted(found)):
        score, other = found[position]
        rows[index] = (position, other, HELD_OUT, -score)
    return rows
