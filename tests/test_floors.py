"""The shape of the house: who may import whom, how long a file may be, and what must stay light to import."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src" / "headwater"

FLOORS: list[set[str]] = [
    {"core"},
    {"plan", "tokenizer", "model", "monitor"},
    {"curate", "dataset"},
    {"parallel"},
    {"train"},
    {"engine"},
    {"evaluate"},
    {"compress"},
    {"adapt"},
    {"serve"},
    {"simulate", "diagnose"},
    {"pipeline"},
    {"cli"},
]
"""Bottom first. A part imports itself and lower floors, never a neighbour."""

LONGEST_MODULE = 400
HEAVY = ("torch", "transformers", "pyarrow", "sentencepiece", "fastapi", "tokenizers")

MODULES = sorted(SOURCE.rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(source: str, name: str, *, package: bool = False) -> Iterator[tuple[int, str]]:
    """(line, absolute module name) of every import in the source of module `name`, those inside functions included."""
    place = name.split(".") if package else name.split(".")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = place[: len(place) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{origin}.{alias.name}") for alias in node.names)


def imports_of(path: Path) -> list[tuple[int, str]]:
    return list(imported(path.read_text("utf-8"), module_name(path), package=path.name == "__init__.py"))


def part_of(name: str) -> str | None:
    """`train` for headwater.train.loop; None outside of the project and for headwater itself (its version)."""
    first, _, rest = name.partition(".")
    part = rest.split(".")[0]
    return part if first == "headwater" and (SOURCE / part).is_dir() and part else None


def test_a_part_imports_only_lower_floors() -> None:
    floor = {part: number for number, parts in enumerate(FLOORS) for part in parts}
    wrong = []
    for path in MODULES:
        part = part_of(module_name(path))
        if part is None:
            continue
        assert part in floor, f"{part} has no floor: add it to FLOORS"
        for line, name in imports_of(path):
            other = part_of(name)
            if other is not None and other != part and floor.get(other, len(FLOORS)) >= floor[part]:
                wrong.append(f"{path.relative_to(SOURCE)}:{line}: {part} must not import {name}")
    assert not wrong, "\n".join(wrong)


def test_the_root_package_imports_no_part() -> None:
    assert [name for _, name in imports_of(SOURCE / "__init__.py") if part_of(name)] == []


def test_the_check_sees_every_form_of_import() -> None:
    source = (
        "import headwater.a\nfrom headwater import b\nfrom headwater.c.x import y\nfrom ..d import z\n"
        "from . import e\ndef f():\n    from headwater.g import h\n"
    )
    names = ["headwater.a", "headwater.b", "headwater.c.x.y", "headwater.d.z", "headwater.train.e", "headwater.g.h"]
    assert [name for _, name in imported(source, "headwater.train.loop")] == names
    assert list(imported("from . import e", "headwater.train", package=True)) == [(1, "headwater.train.e")]


def test_a_module_is_one_idea_and_says_which() -> None:
    wrong = []
    for path in MODULES:
        source = path.read_text("utf-8")
        lines = len(source.splitlines())
        if lines > LONGEST_MODULE:
            wrong.append(f"{path.relative_to(SOURCE)} has {lines} lines: split it")
        if not ast.get_docstring(ast.parse(source)):
            wrong.append(f"{path.relative_to(SOURCE)} does not say what it is for")
    assert not wrong, "\n".join(wrong)


LIGHT = [
    "headwater",
    *(module_name(path) for path in MODULES if path.parent.name == "core" and path.name != "documents.py"),
    *(module_name(path) for path in MODULES if path.name == "config.py"),
]


def test_configuration_and_core_import_nothing_heavy() -> None:
    script = (
        "import importlib, sys\n"
        "for name in sys.argv[2:]:\n"
        "    importlib.import_module(name)\n"
        "    found = sorted(set(sys.argv[1].split(',')) & sys.modules.keys())\n"
        "    if found: sys.exit(f'importing {name} imports {found}')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, ",".join(HEAVY), *LIGHT], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
