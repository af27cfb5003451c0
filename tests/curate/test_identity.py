import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pydantic import ValidationError

from headwater.core.config import identity
from headwater.core.errors import InputError
from headwater.core.rawinput import HashCache
from headwater.curate import raw_digests, raw_inputs
from headwater.curate.config import CollectConfig, CurateConfig, SourceConfig


def config(root: Path) -> CollectConfig:
    return CollectConfig(root=str(root), sources=({"name": "a", "paths": "*.txt"}, {"name": "b", "paths": "b"}))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "raw"
    (folder / "b").mkdir(parents=True)
    (folder / "x.txt").write_text("one")
    (folder / "b" / "y.txt").write_text("two")
    return folder


def test_content_and_names_identify_the_input_and_the_place_does_not(tmp_path: Path, root: Path) -> None:
    before = raw_inputs(config(root))
    moved = root.rename(tmp_path / "moved")
    assert raw_inputs(config(moved)) == before
    (moved / "x.txt").write_text("eno")
    changed = raw_digests(config(moved))
    assert raw_inputs(config(moved)) != before
    (moved / "x.txt").write_text("one")
    (moved / "b" / "y.txt").rename(moved / "b" / "z.txt")
    assert raw_inputs(config(moved)) != before
    assert raw_digests(config(moved))["b"] != changed["b"]


def test_a_tilde_in_the_root_is_the_home_folder(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(root.parent))
    assert raw_inputs(config(Path("~/raw"))) == raw_inputs(config(root))


def test_unchanged_files_are_not_read_again(tmp_path: Path, root: Path) -> None:
    for path in root.rglob("*.txt"):
        os.utime(path, (time.time() - 100, time.time() - 100))
    with HashCache(tmp_path) as cache:
        first = raw_inputs(config(root), cache)
    with HashCache(tmp_path) as cache:
        assert raw_inputs(config(root), cache) == first
        assert (cache.hits, cache.misses) == (2, 0)


def test_a_missing_path_is_an_error(root: Path) -> None:
    (root / "b" / "y.txt").unlink()
    (root / "b").rmdir()
    with pytest.raises(InputError, match="nothing there"):
        raw_inputs(config(root))


def test_workers_folders_and_memory_do_not_enter_the_identity() -> None:
    here, there = CollectConfig(root="/a", max_quarantine_ratio=0.5), CollectConfig(root="/b")
    assert identity(here) == identity(there)
    assert identity(CurateConfig(dedup={"keys_in_memory": 5})) == identity(CurateConfig())
    assert identity(CurateConfig(shard_bytes=5)) != identity(CurateConfig())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "../x", "paths": "a"}, "cannot name files"),
        ({"name": "x", "paths": "a", "domain": "Web/News"}, "cannot name files"),
        ({"name": "x"}, "needs `paths`"),
        ({"name": "x", "paths": "a", "packages": "numpy"}, "python-environment"),
        ({"name": "x", "kind": "python-environment", "stdlib": False}, "reads nothing"),
        ({"name": "x", "kind": "python-environment", "paths": "a"}, "not `paths`"),
        ({"name": "x", "kind": "python-environment", "parts": {"tests": "code"}}, "is no part"),
        ({"name": "x", "paths": "a", "encoding": "klingon"}, "is no encoding"),
        ({"name": "x", "paths": "a", "pathz": "b"}, "pathz"),
    ],
)
def test_impossible_sources_are_refused_with_a_reason(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        SourceConfig(**fields)  # type: ignore[arg-type]


def test_two_sources_of_one_name_are_refused() -> None:
    with pytest.raises(ValidationError, match="names must differ"):
        CollectConfig(sources=({"name": "a", "paths": "x"}, {"name": "a", "paths": "y"}))


def test_checking_the_input_imports_nothing_heavy(root: Path) -> None:
    code = (
        "import sys; from headwater.curate import CollectConfig, raw_inputs; "
        f"raw_inputs(CollectConfig(root={str(root)!r}, sources=({{'name': 'a', 'paths': '*.txt'}}, "
        "{'name': 'p', 'kind': 'python-environment', 'packages': ['click'], 'stdlib': False}))); "
        "heavy = {'torch', 'pyarrow', 'numpy', 'transformers', 'sentencepiece', 'resiliparse'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
