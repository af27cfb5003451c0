"""How well this machine can confine a program, found out by confining one, and a sandbox no weaker than wanted.

achieved()                              # (Level.FULL, {})
with open_sandbox() as sandbox: ...     # at least reduced
"""

from __future__ import annotations

import sys
from functools import cache

from headwater.core.errors import HeadwaterError, UserError
from headwater.evaluate.sandbox.limits import Level, Limits
from headwater.evaluate.sandbox.runner import Sandbox


@cache
def achieved() -> tuple[Level, dict[str, str]]:
    """(strongest level that works here, why the stronger ones do not)."""
    reasons: dict[str, str] = {}
    for level in (Level.FULL, Level.REDUCED):
        reason = _try(level)
        if reason is None:
            return level, reasons
        reasons[level.value] = reason
    return Level.NONE, reasons


def open_sandbox(
    *, minimum: Level = Level.REDUCED, level: Level | None = None, limits: Limits | None = None
) -> Sandbox:
    """A sandbox of `level`, or of the strongest level this machine has.

    Raises UserError if that is weaker than `minimum` or cannot be had here. Level none still limits time, memory and
    files; it is used only where both `minimum` and what the machine gives are none.
    """
    if level is Level.NONE and minimum is Level.NONE:
        return Sandbox(Level.NONE, limits)
    best, reasons = achieved()
    chosen = level or best
    if minimum.rank > chosen.rank or chosen.rank > best.rank:
        wanted = max(minimum, chosen, key=lambda value: value.rank).value
        why = "".join(f"; {name} fails: {reason}" for name, reason in reasons.items())
        given = best.value if chosen.rank > best.rank or level is None else chosen.value
        raise UserError(
            f"programs written by a model need a sandbox of level {wanted}, and this one would be {given}{why}",
            mend="run on Linux 5.13 or later with Landlock and seccomp, or allow a weaker level by name (none has "
            "limits but no isolation: only for programs that you have read)",
        )
    return Sandbox(chosen, limits)


def _try(level: Level) -> str | None:
    """None if a program can be confined at `level` here, else the reason."""
    if sys.platform != "linux":
        return f"{sys.platform} has no namespaces, Landlock and seccomp"
    with Sandbox(level, Limits(seconds=10)) as sandbox:
        try:
            outcome = sandbox.check("def one():\n    return 1\n", "assert one() == 1\n", entry_point="one", check="")
        except HeadwaterError as error:
            return error.what
    return None if outcome.passed else outcome.reason
