"""Real text that every Python machine has: the running interpreter's standard library and installed distributions.

Each module gives two documents: its code without doc strings, and its doc strings as prose, so that neither repeats the
other. `pydoc_data.topics` gives the language reference, and each distribution the long description of its METADATA.
Distributions are known by the SHA-256 of their files in RECORD, and a file that no longer has it is quarantined; the
standard library is known by its content.

Left out, since they are no text to learn from: test suites, vendored copies, idlelib, lib2to3, turtledemo, build
settings of this machine, and modules that are mostly a table of literals (codecs' tables for one).
"""

from __future__ import annotations

import ast
import csv
import hashlib
import io
import os
import re
import sys
import sysconfig
import tokenize
import warnings
from base64 import urlsafe_b64decode
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from inspect import cleandoc
from pathlib import Path, PurePosixPath

from headwater.core.errors import InputError
from headwater.curate.config import SourceConfig
from headwater.curate.records import Bad, Item, Reason, Record, Skip, Skipped
from headwater.curate.sources import SourceFile

_TESTS_AND_TOOLS = {"test", "tests", "idlelib", "lib2to3", "turtledemo", "ensurepip", "__pycache__"}
_COPIES = {"_vendor", "vendor", "vendored", "_vendored", "site-packages", "dist-packages"}
LEFT_OUT_FOLDERS = frozenset(_TESTS_AND_TOOLS | _COPIES)
LEFT_OUT_FILES = re.compile(r"test_.*|.*_test\.py|conftest\.py|_sysconfigdata.*")
MIN_PROSE_CHARACTERS = 200
"""A module with fewer characters of doc strings gives no prose document."""

TABLE_LINES, TABLE_SHARE = 100, 0.5
_LITERAL_LINE = re.compile(r"\s*(?:[-+]?\.?\d|[rbuRBU]?['\"]|[\[\](){},])")
_TOPICS = "pydoc_data/topics.py"
_UNKNOWN_HASH = "none in RECORD"


def environment_files(source: SourceConfig) -> list[SourceFile]:
    """Every file of the environment the source asks for, in order. Imports none of them.

    Raises InputError for a distribution that is not installed or has no RECORD.
    """
    files = _stdlib_files(source) if source.stdlib else []
    for name in sorted(set(source.packages), key=str.lower):
        files += _distribution_files(name, source)
    return files


def environment_lines(source: SourceConfig) -> Iterator[tuple[str, str, str]]:
    """(relative name, path, hash) of each file, which together identify the environment; the hash is "" for files of
    the standard library, whose content the caller hashes."""
    yield f"python-{sys.version_info.major}.{sys.version_info.minor}", "", "version"  # the parser is its own
    for file in environment_files(source):
        yield file.relative, file.path, file.sha256


def _left_out(relative: PurePosixPath) -> bool:
    return (
        bool(LEFT_OUT_FOLDERS & set(relative.parts[:-1]))
        or any(part.startswith("config-") for part in relative.parts[:-1])
        or LEFT_OUT_FILES.fullmatch(relative.name) is not None
    )


def _stdlib_files(source: SourceConfig) -> list[SourceFile]:
    root = Path(sysconfig.get_path("stdlib"))
    files = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in LEFT_OUT_FOLDERS]  # tests are most of the library
        for name in names:
            path = os.path.join(folder, name)
            relative = PurePosixPath(os.path.relpath(path, root)) if name.endswith(".py") else None
            if relative is not None and not _left_out(relative):
                kind = "topics" if str(relative) == _TOPICS else "python"
                size = os.stat(path).st_size
                files.append(SourceFile(path, f"stdlib/{relative}", size, kind, license="PSF-2.0"))
    if not files:
        raise InputError(
            f"this interpreter's standard library has no source files: {root}",
            where=f"source {source.name}",
            mend="set stdlib: false, or use an interpreter with its library as .py files",
        )
    return sorted(files, key=lambda file: file.relative)


def _distribution_files(name: str, source: SourceConfig) -> list[SourceFile]:
    try:
        found = distribution(name)
    except (PackageNotFoundError, ValueError):
        raise InputError(
            f"the distribution {name!r} is not installed in {sys.prefix}",
            where=f"source {source.name}, packages",
            mend=f"install it (pip install {name}) or take it out of the list",
        ) from None
    record = found.read_text("RECORD")
    if not record:
        raise InputError(
            f"the distribution {name!r} has no RECORD, so its files cannot be identified",
            where=f"source {source.name}, packages",
            mend="install it with pip into a virtual environment, or take it out of the list",
        )
    license = _license(found)
    label = f"{found.name.lower().replace('_', '-')}-{found.version}"
    files = []
    for row in csv.reader(record.splitlines()):
        path = PurePosixPath(row[0]) if row else PurePosixPath()
        description = path.name == "METADATA" and path.parent.suffix == ".dist-info"
        if (path.suffix != ".py" and not description) or ".." in path.parts or path.is_absolute() or _left_out(path):
            continue
        mode, _, value = row[1].partition("=") if len(row) > 1 else ("", "", "")
        digest = urlsafe_b64decode(value + "=" * (-len(value) % 4)).hex() if mode == "sha256" else _UNKNOWN_HASH
        size = int(row[2]) if len(row) > 2 and row[2].isdigit() else 0
        kind = "description" if description else "python"
        place = str(found.locate_file(row[0]))
        files.append(SourceFile(place, f"{label}/{path}", size, kind, license=license, sha256=digest))
    return sorted(files, key=lambda file: file.relative)


def _license(found: Distribution) -> str:
    metadata = found.metadata
    for field in ("License-Expression", "License"):
        value = (metadata.get_all(field) or [""])[0]
        if value and "\n" not in value and len(value) < 80:
            return value
    classifiers = [line for line in metadata.get_all("Classifier") or [] if line.startswith("License ::")]
    return classifiers[0].rpartition(" :: ")[2] if classifiers else ""


def read_environment(file: SourceFile, source: SourceConfig) -> Iterator[Item]:
    """The documents of one file: code at position 0, prose at 1, topics and descriptions from 0 on."""
    data = Path(file.path).read_bytes()
    if file.sha256 and hashlib.sha256(data).hexdigest() != file.sha256:
        detail = "its SHA-256 is not the one in RECORD: it was changed after installation"
        yield Bad(Reason.HASH_MISMATCH, detail, raw_bytes=len(data))
        return
    if not data.strip():
        yield Skipped(Skip.NO_PROSE, len(data))
        return
    try:
        text = _decode(data, file.kind)
    except (SyntaxError, UnicodeDecodeError) as error:
        yield Bad(Reason.BAD_ENCODING, str(error), raw_bytes=len(data))
        return
    if len(data) > source.max_document_bytes:
        yield Bad(Reason.TOO_LARGE, f"{len(data):,} bytes", raw_bytes=len(data))
    elif file.kind == "topics":
        yield from _topics(text, file, source)
    elif file.kind == "description":
        yield _description(text, file, source, len(data))
    else:
        yield from _module(text, file, source, len(data))


def _decode(data: bytes, kind: str) -> str:
    encoding = "utf-8" if kind == "description" else tokenize.detect_encoding(io.BytesIO(data).readline)[0]
    return data.decode(encoding).removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def _module(text: str, file: SourceFile, source: SourceConfig, size: int) -> Iterator[Item]:
    if is_table(text):
        yield Skipped(Skip.DATA_TABLE, size)
        return
    code, prose = split_module(text, _module_name(file.relative))
    if "code" in source.parts:
        meta = {"path": file.relative, "doc_strings": "apart"}
        yield Record(code, 0, size, lang="python", domain=source.parts["code"], license=file.license, meta=meta)
    if "docstrings" in source.parts:
        if len(prose) < MIN_PROSE_CHARACTERS:
            yield Skipped(Skip.NO_PROSE, 0)
        else:
            yield _prose(prose, 1, 0 if "code" in source.parts else size, file, source, "docstrings")


def _prose(text: str, position: int, size: int, file: SourceFile, source: SourceConfig, part: str) -> Record:
    domain, meta = source.parts[part], {"path": file.relative, "extractor": part}
    return Record(text, position, size, lang="en", domain=domain, license=file.license, meta=meta)


def _description(text: str, file: SourceFile, source: SourceConfig, size: int) -> Item:
    _, _, body = text.partition("\n\n")  # headers, then the long description
    if "descriptions" not in source.parts or not body.strip():
        return Skipped(Skip.NO_PROSE, size)
    record = _prose(body, 0, size, file, source, "descriptions")
    del record.meta["extractor"]  # READMEs have HTML in them
    return record


def _topics(text: str, file: SourceFile, source: SourceConfig) -> Iterator[Item]:
    if "docstrings" not in source.parts:
        yield Skipped(Skip.NO_PROSE, len(text))
        return
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign):
            for number, topic in enumerate(ast.literal_eval(node.value).values()):
                yield _prose(cleandoc(topic), number, len(topic.encode()), file, source, "docstrings")


def _module_name(relative: str) -> str:
    parts = PurePosixPath(relative).with_suffix("").parts[1:]
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


def is_table(text: str) -> bool:
    """Whether a module is mostly a table of literals."""
    lines = [line for line in text.split("\n") if line.strip() and not line.lstrip().startswith("#")]
    return len(lines) >= TABLE_LINES and sum(map(bool, map(_LITERAL_LINE.match, lines))) > TABLE_SHARE * len(lines)


def split_module(text: str, name: str) -> tuple[str, str]:
    """A module's code without doc strings, and the doc strings as prose with a heading each. A module that does not
    parse is all code. A body that was only a doc string becomes `...`."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in other people's code
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return text, ""
    lines: list[str | None] = list(text.split("\n"))
    sections: list[str] = []
    _take_doc_strings(tree, name, lines, sections)
    return "\n".join(line for line in lines if line is not None), "\n\n".join(sections)


_Holder = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def _take_doc_strings(node: _Holder, name: str, lines: list[str | None], sections: list[str]) -> None:
    doc = ast.get_docstring(node)
    first = node.body[0] if node.body else None
    if doc is not None and isinstance(first, ast.Expr) and _stands_alone(first, lines):
        arguments = f"({ast.unparse(node.args)})" if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else ""
        sections.append(f"{name}{arguments}\n\n{doc}")
        start, end = first.lineno - 1, first.end_lineno or first.lineno
        lines[start:end] = [None] * (end - start)
        if len(node.body) == 1 and not isinstance(node, ast.Module):
            lines[start] = " " * first.col_offset + "..."
        elif end < len(lines) and not (lines[end] or "").strip():
            lines[end] = None
    for child in _definitions(node):
        _take_doc_strings(child, f"{name}.{child.name}", lines, sections)


def _definitions(node: ast.AST) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """Classes and functions in a body, those under `if`, `try` and `with` too, but not those inside each other."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
        elif isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield from _definitions(child)


def _stands_alone(node: ast.Expr, lines: list[str | None]) -> bool:
    """Whether nothing but the doc string is on its lines."""
    before = (lines[node.lineno - 1] or "")[: node.col_offset]
    after = (lines[(node.end_lineno or 1) - 1] or "").encode()[node.end_col_offset :].decode("utf-8", "replace")
    return not before.strip() and not after.split("#")[0].strip()
