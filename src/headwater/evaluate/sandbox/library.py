"""Where a confined program finds Python's standard library, under a user id that may read nothing else.

In: a folder for a copy. Out: `sys.path` entries. An interpreter installed below somebody's home is out of reach for
other users, so its library is then copied once (about 40 MB) into a folder they can read.

    library_paths(Path("/tmp/sandbox"))
"""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path

_LEFT_OUT = shutil.ignore_patterns(
    "site-packages", "test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "config-*"
)


def library_paths(copy_to: Path) -> list[str]:
    """Folders of the standard library, pure and compiled, that every user can read."""
    library = Path(sysconfig.get_paths()["stdlib"])
    if not _reachable(library):
        copy = copy_to / "library"
        if not copy.exists():
            shutil.copytree(library, copy, ignore=_LEFT_OUT)
            for path in (copy, *copy.rglob("*")):
                path.chmod(0o755 if path.is_dir() else 0o644)
        library = copy
    return [str(library), str(library / "lib-dynload")]


def _reachable(folder: Path) -> bool:
    return all(place.stat().st_mode & 0o5 == 0o5 for place in (folder, *folder.parents))
