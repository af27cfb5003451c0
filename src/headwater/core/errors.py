"""Errors that say what happened, where, and how to mend it.

Every error a person can meet is a subclass of `HeadwaterError`. The command line prints the three parts and
exits with `exit_code`: 2 for the user's mistake, 1 for ours; a traceback only with `--debug`.

    raise InputError("row is not a JSON object", where="web.jsonl:17", mend="give one object a line")
"""

from __future__ import annotations


class HeadwaterError(Exception):
    """Base of all errors Headwater raises on purpose.

    `what` is one sentence with the value seen; `where` a place (file:line, recipe field, rank, step);
    `mend` what the reader can do now.
    """

    exit_code = 1

    def __init__(self, what: str, *, where: str = "", mend: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.mend = mend

    def __str__(self) -> str:
        where = f"{self.where}: " if self.where else ""
        mend = f"\n  mend: {self.mend}" if self.mend else ""
        return f"{where}{self.what}{mend}"

    def __reduce__(self) -> tuple[object, ...]:
        """Survive the trip back from a worker process, keyword arguments included."""
        return (_rebuild, (type(self), self.what, self.where, self.mend))


def _rebuild(cls: type[HeadwaterError], what: str, where: str, mend: str) -> HeadwaterError:
    return cls(what, where=where, mend=mend)


class UserError(HeadwaterError):
    """Something the person who ran the command can put right; exit code 2."""

    exit_code = 2


class RecipeError(UserError):
    """A recipe that cannot be read, has an unknown key or an impossible value."""


class InputError(UserError):
    """An input file or folder that is missing, unreadable or not what it was said to be."""


class LockedError(UserError):
    """Another living process writes to this folder."""


class CorruptArtifactError(HeadwaterError):
    """A committed file no longer has the content its manifest promises."""


class DiskSpaceError(UserError):
    """The estimated output does not fit on the disk."""
