"""Counts of documents, bytes and units that add up.

`Tally` adds triples under keys; a stage's report is made of tallies alone, so what goes in equals what comes out plus
what was dropped for each reason.
"""

from __future__ import annotations

from collections.abc import Iterator

FIELDS = ("documents", "bytes", "units")


class Tally:
    """Named triples (documents, bytes, units). Keys are joined with `|` in JSON."""

    def __init__(self, rows: dict[str, list[int]] | None = None) -> None:
        self.rows: dict[str, list[int]] = {key: list(row) for key, row in (rows or {}).items()}

    def add(self, *key: str, documents: int = 1, bytes: int = 0, units: int = 0) -> None:
        row = self.rows.setdefault("|".join(key), [0, 0, 0])
        row[0] += documents
        row[1] += bytes
        row[2] += units

    def merge(self, rows: dict[str, list[int]]) -> None:
        """Add what another tally holds."""
        for key, (documents, size, units) in rows.items():
            self.add(key, documents=documents, bytes=size, units=units)

    def items(self) -> Iterator[tuple[tuple[str, ...], list[int]]]:
        """(key parts, triple), sorted by key."""
        for key in sorted(self.rows):
            yield tuple(key.split("|")), self.rows[key]

    def by(self, *places: int) -> dict[str, dict[str, int]]:
        """Summed over all but the given parts of the key, as plain JSON, sorted."""
        sums = Tally()
        for key, (documents, size, units) in self.items():
            sums.add(*(key[place] for place in places), documents=documents, bytes=size, units=units)
        return {key: as_json(row) for key, row in sorted(sums.rows.items())}

    def total(self) -> list[int]:
        return [sum(row[place] for row in self.rows.values()) for place in range(3)]


def as_json(row: list[int]) -> dict[str, int]:
    """A triple as `{"documents": ..., "bytes": ..., "units": ...}`."""
    return dict(zip(FIELDS, row, strict=True))
