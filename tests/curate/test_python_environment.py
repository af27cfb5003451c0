import ast
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.core.errors import InputError
from headwater.core.rawinput import HashCache
from headwater.curate.config import CollectConfig, SourceConfig
from headwater.curate.identity import raw_inputs
from headwater.curate.readers import read_file
from headwater.curate.readers.python_environment import environment_files, is_table, read_environment, split_module
from headwater.curate.records import Bad, Reason, Record
from headwater.curate.sources import SourceFile

SOURCE = SourceConfig(name="python", kind="python-environment", packages=("click", "Jinja2"), stdlib=False)

MODULE = '''"""The module."""
import os


class A:
    """A class.

    With two paragraphs.
    """

    def f(self, x: int = 1) -> None:
        """Only a doc string."""

    async def g(self): "on the same line"

    def h(self):
        """First."""

        return "not a doc"
'''


def test_code_and_doc_strings_go_apart() -> None:
    code, prose = split_module(MODULE, "m")
    assert ast.dump(ast.parse(code)) == ast.dump(
        ast.parse(
            "import os\n\nclass A:\n    def f(self, x: int = 1) -> None:\n        ...\n"
            '    async def g(self): "on the same line"\n    def h(self):\n        return "not a doc"\n'
        )
    )
    assert prose == (
        "m\n\nThe module.\n\nm.A\n\nA class.\n\nWith two paragraphs.\n\n"
        "m.A.f(self, x: int=1)\n\nOnly a doc string.\n\nm.A.h(self)\n\nFirst."
    )


@pytest.mark.parametrize("text", ["def broken(:\n", "x = 'caf\\xe9'\n", "", "'''doc'''; x = 1\n", "# only a comment\n"])
def test_modules_without_separable_doc_strings_are_all_code(text: str) -> None:
    assert split_module(text, "m") == (text, "")


@given(st.sampled_from(["json", "dataclasses", "typing", "asyncio.tasks", "enum", "pathlib", "shutil", "textwrap"]))
def test_code_of_real_modules_still_parses_without_doc_strings(name: str) -> None:
    __import__(name)
    text = Path(str(sys.modules[name].__file__)).read_text(encoding="utf-8")
    code, prose = split_module(text, name)
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.Module) and ast.get_docstring(node):
            assert node.body[0].lineno == getattr(node, "lineno", 0)  # on one line with its def
    assert len(prose) > 200


def test_installed_distributions_are_read_with_licence_and_domains() -> None:
    files = environment_files(SOURCE)
    assert all(file.sha256 for file in files)
    found = [item for file in files for item in read_file(file, SOURCE)]
    records = [item for item in found if isinstance(item, Record)]
    domains = Counter(record.domain for record in records)
    assert set(domains) == {"code", "docs", "other"}
    assert domains["other"] == 2  # one README each
    assert not [item for item in found if isinstance(item, Bad)]
    assert {record.license for record in records} == {"BSD-3-Clause", "BSD License"} or all(
        record.license for record in records
    )
    assert all(record.lang == ("python" if record.domain == "code" else "en") for record in records)
    assert not [file for file in files if "/tests/" in file.relative or "test_" in file.relative]


def test_the_standard_library_comes_without_tests_and_tables() -> None:
    files = environment_files(SourceConfig(name="python", kind="python-environment"))
    names = {file.relative for file in files}
    assert "stdlib/json/decoder.py" in names
    assert not [name for name in names if "/test/" in name or "/idlelib/" in name or "site-packages" in name]
    assert len(names) == len(files) > 300
    table = "\n".join(f"    {number}: 'x{number}'," for number in range(200))
    assert is_table(f"table = {{\n{table}\n}}\n")
    assert not is_table("\n".join(f"def f{number}():\n    return {number}\n" for number in range(100)))


def test_a_file_changed_after_installation_is_quarantined(tmp_path: Path) -> None:
    file = environment_files(SOURCE)[3]
    changed = tmp_path / "changed.py"
    changed.write_bytes(Path(file.path).read_bytes() + b"\n# edited\n")
    other = SourceFile(str(changed), file.relative, file.size, file.kind, sha256=file.sha256)
    (item,) = read_environment(other, SOURCE)
    assert isinstance(item, Bad)
    assert item.reason == Reason.HASH_MISMATCH


def test_a_missing_distribution_is_named() -> None:
    source = SourceConfig(name="python", kind="python-environment", packages=("no-such-thing",))
    with pytest.raises(InputError, match="'no-such-thing' is not installed") as error:
        environment_files(source)
    assert "pip install no-such-thing" in str(error.value)


def test_only_the_asked_parts_are_read() -> None:
    source = SourceConfig(
        name="p", kind="python-environment", packages=("click",), stdlib=False, parts={"docstrings": "books"}
    )
    found = [item for file in environment_files(source) for item in read_file(file, source)]
    assert {item.domain for item in found if isinstance(item, Record)} == {"books"}


def test_the_environment_is_identified_fast_once_it_is_known(tmp_path: Path) -> None:
    packages = ("click", "Jinja2", "numpy", "pydantic", "rich", "typer")
    config = CollectConfig(sources=({"name": "python", "kind": "python-environment", "packages": packages},))
    with HashCache(tmp_path) as cache:
        first = raw_inputs(config, cache)
    start = time.process_time()
    with HashCache(tmp_path) as cache:
        assert raw_inputs(config, cache) == first
        assert cache.misses == 0
    assert time.process_time() - start < 1.5
    fewer = CollectConfig(sources=({"name": "python", "kind": "python-environment", "packages": packages[1:]},))
    assert raw_inputs(fewer) != first
