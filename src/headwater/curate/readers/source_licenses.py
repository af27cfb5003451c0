"""Which licence program files are under: by their own SPDX line, else the nearest licence file above them, else what
the nearest package file says.

    tree = TreeLicenses(Path("repository")); tree.of(Path("repository/src/a.py"))      # "MIT"
"""

from __future__ import annotations

import re
from pathlib import Path

_SPDX = re.compile(r"SPDX-License-Identifier:\s*\(?([A-Za-z0-9.+-]+(?:\s+(?:AND|OR|WITH)\s+[A-Za-z0-9.+-]+)*)")
_NAMES = re.compile(
    r"(?:un)?licen[cs]e|copying|copyright|licen[cs]e[-_.].+|.+[-_.]licen[cs]e|copying\..+", re.IGNORECASE
)
_PACKAGE_FILES = ("pyproject.toml", "package.json", "Cargo.toml", "setup.cfg", "composer.json")
_DECLARED = re.compile(
    r"""^\s*["']?license["']?\s*[:=]\s*(?:\{\s*text\s*=\s*)?["']?([A-Za-z0-9.+ -]{2,60}?)["',}\s]*$""", re.M
)
_READ_BYTES = 64 << 10

# The first whose phrases are all there; longer texts that quote others come first.
_PHRASES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("AGPL-3.0", ("gnu affero general public license", "version 3")),
    ("LGPL-3.0", ("gnu lesser general public license", "version 3")),
    ("LGPL-2.1", ("gnu lesser general public license", "version 2.1")),
    ("LGPL-2.0", ("gnu library general public license",)),
    ("GPL-3.0", ("gnu general public license", "version 3")),
    ("GPL-2.0", ("gnu general public license", "version 2")),
    ("MPL-2.0", ("mozilla public license", "2.0")),
    ("EPL-2.0", ("eclipse public license", "2.0")),
    ("Apache-2.0", ("apache license", "version 2.0")),
    ("CC-BY-SA-4.0", ("attribution-sharealike 4.0",)),
    ("CC-BY-NC-4.0", ("attribution-noncommercial 4.0",)),
    ("CC-BY-4.0", ("attribution 4.0 international",)),
    ("CC0-1.0", ("cc0 1.0 universal",)),
    ("Unlicense", ("this is free and unencumbered software released into the public domain",)),
    ("BSL-1.0", ("boost software license", "version 1.0")),
    ("Zlib", ("this software is provided 'as-is'", "altered source versions must be plainly marked")),
    ("PSF-2.0", ("python software foundation license",)),
    ("BSD-3-Clause", ("redistribution and use in source and binary forms", "endorse or promote products")),
    ("BSD-2-Clause", ("redistribution and use in source and binary forms",)),
    ("ISC", ("permission to use, copy, modify, and/or distribute this software", "with or without fee")),
    ("ISC", ("permission to use, copy, modify, and distribute this software for any purpose with or without fee",)),
    ("MIT-0", ("permission is hereby granted, free of charge", "mit no attribution")),
    ("MIT", ("permission is hereby granted, free of charge, to any person obtaining a copy",)),
    ("WTFPL", ("do what the fuck you want to public license",)),
    ("MulanPSL-2.0", ("木兰宽松许可证", "第2版")),
    ("MulanPSL-2.0", ("mulan permissive software license", "version 2")),
)


def license_of_text(text: str) -> str:
    """The SPDX name of a licence's text, "" if it is none of those known."""
    if found := _SPDX.search(text):
        return found[1]
    flat = re.sub(r"[\s*#/;]+", " ", text.lower())
    return next((name for name, phrases in _PHRASES if all(phrase in flat for phrase in phrases)), "")


def own_license(text: str) -> str:
    """What the head of a program file says: an SPDX line in its first 4,096 characters; "" without one."""
    found = _SPDX.search(text[:4096])
    return found[1] if found else ""


def is_license_file(name: str) -> bool:
    """Whether a file's name says that it is a licence."""
    return _NAMES.fullmatch(name) is not None and Path(name).suffix.lower() in (
        "",
        ".txt",
        ".md",
        ".rst",
        ".mit",
        ".apache",
    )


class TreeLicenses:
    """Licences of the folders below `root`, each looked at once; nothing above `root` counts."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._folders: dict[Path, str] = {}

    def of(self, path: Path) -> str:
        """The licence that holds for a file, "" if nothing says one."""
        folder = path.parent
        seen: list[Path] = []
        found = ""
        while folder not in self._folders:
            seen.append(folder)
            if (found := self._said_in(folder)) or folder in (self.root, folder.parent):
                break
            folder = folder.parent
        else:
            found = self._folders[folder]
        for place in seen:
            self._folders[place] = found
        return found

    def _said_in(self, folder: Path) -> str:
        try:
            names = sorted(entry.name for entry in folder.iterdir() if entry.is_file())
        except OSError:
            return ""
        licenses = [name for name in names if is_license_file(name)]
        said = [found for name in licenses if (found := license_of_text(_head(folder / name)))]
        if said:
            return " OR ".join(dict.fromkeys(said)) if len(licenses) == len(said) else said[0]
        for name in _PACKAGE_FILES:
            if name in names and (declared := _DECLARED.search(_head(folder / name))):
                return declared[1].strip()
        return ""


def _head(path: Path) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(_READ_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
