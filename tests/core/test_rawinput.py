"""Raw inputs are known by content: order, place and time play no part, and unchanged files are not read again."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.core.errors import InputError
from headwater.core.rawinput import HashCache, hash_file, hash_files, hash_tree
from tests.conftest import Killer


def write(path: Path, data: bytes, age: float = 1000.0) -> Path:
    """A file last changed `age` seconds ago."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    os.utime(path, (time.time() - age,) * 2)
    return path


def cached_hash(path: Path, workspace: Path) -> tuple[str, int]:
    """The hash, and how many files were read for it."""
    with HashCache(workspace) as cache:
        return hash_file(path, cache), cache.misses


def test_a_file_is_read_once_and_then_known(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"text")
    first = cached_hash(path, tmp_path / "w")
    assert first == (hash_file(path), 1)
    assert cached_hash(path, tmp_path / "w") == (first[0], 0)


@pytest.mark.parametrize("change", ["content", "size", "mtime", "inode"])
def test_a_changed_file_is_read_again(change: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"text")
    before = path.stat()
    old = cached_hash(path, tmp_path / "w")[0]
    if change == "content":
        write(path, b"TEXT", age=500)
    elif change == "size":
        path.write_bytes(b"text and more")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    elif change == "mtime":
        os.utime(path, (1, 1))
    else:
        write(tmp_path / "b.txt", b"TEXT")
        os.utime(tmp_path / "b.txt", ns=(before.st_atime_ns, before.st_mtime_ns))
        (tmp_path / "b.txt").replace(path)
    new, misses = cached_hash(path, tmp_path / "w")
    assert misses == 1
    assert (new == old) == (change == "mtime")
    assert new == hash_file(path)


def test_a_file_changed_a_moment_ago_is_not_trusted(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"one", age=0)
    stamp = path.stat()
    old = cached_hash(path, tmp_path / "w")[0]
    path.write_bytes(b"two")  # within the clock's tick: same size, same inode
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert cached_hash(path, tmp_path / "w")[0] != old


def test_a_tree_does_not_depend_on_place_time_or_order_of_making(tmp_path: Path) -> None:
    names = ["b/2.txt", "a/1.txt", "a.txt", "中文/文.txt", "B.txt", ".hidden"]
    for root, order in ((tmp_path / "one", names), (tmp_path / "two", names[::-1])):
        for number, name in enumerate(order):
            write(root / name, name.encode(), age=1000 + number)
    one, two = hash_tree(tmp_path / "one"), hash_tree(tmp_path / "two")
    assert one.digest == two.digest
    assert [file.relative for file in one.files] == [".hidden", "B.txt", "a.txt", "a/1.txt", "b/2.txt", "中文/文.txt"]
    assert one.total_bytes == sum(len(name.encode()) for name in names)
    paths = [tmp_path / "two" / name for name in names]
    assert hash_files(tmp_path / "two", [*paths, *paths]).digest == one.digest
    (tmp_path / "two" / "B.txt").rename(tmp_path / "two" / "C.txt")
    assert hash_tree(tmp_path / "two").digest != one.digest


def test_a_single_file_is_a_tree_of_one(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"text")
    found = hash_tree(path)
    assert [(file.relative, file.size, file.hash) for file in found.files] == [("a.txt", 4, hash_file(path))]


@given(st.dictionaries(st.sampled_from("abcdef"), st.binary(max_size=8), max_size=4))
def test_trees_are_equal_exactly_when_names_and_contents_are(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]
) -> None:
    root = tmp_path_factory.mktemp("tree")
    for name, data in files.items():
        (root / name).write_bytes(data)
    before = hash_tree(root).digest
    assert before == hash_tree(root).digest
    (root / "f").write_bytes(files.get("f", b"") + b"!")
    assert hash_tree(root).digest != before


def test_links_are_followed_and_a_loop_is_an_error(tmp_path: Path) -> None:
    write(tmp_path / "real" / "a.txt", b"text")
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "file.txt").symlink_to(tmp_path / "real" / "a.txt")
    (tmp_path / "raw" / "folder").symlink_to(tmp_path / "real")
    found = hash_tree(tmp_path / "raw")
    assert [file.relative for file in found.files] == ["file.txt", "folder/a.txt"]
    (tmp_path / "raw" / "back").symlink_to(tmp_path / "raw")
    with pytest.raises(InputError, match="leads back"):
        hash_tree(tmp_path / "raw")


def test_unreadable_files_are_named_and_do_not_stop_the_rest(tmp_path: Path) -> None:
    write(tmp_path / "raw" / "good.txt", b"good")
    os.mkfifo(tmp_path / "raw" / "pipe")
    (tmp_path / "raw" / "dangling").symlink_to(tmp_path / "nowhere")
    with HashCache(tmp_path / "w") as cache:
        found = hash_tree(tmp_path / "raw", cache)
    assert [(file.relative, file.unreadable) for file in found.unreadable] == [
        ("dangling", "cannot read: No such file or directory"),
        ("pipe", "not a regular file"),
    ]
    write(tmp_path / "nowhere", b"now there")
    assert hash_tree(tmp_path / "raw").digest != found.digest
    with pytest.raises(InputError, match="not a regular file"):
        hash_file(tmp_path / "raw" / "pipe")
    with pytest.raises(InputError, match="cannot list the folder"):
        hash_tree(tmp_path / "missing")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_forbidden_file_is_unreadable(tmp_path: Path) -> None:
    write(tmp_path / "raw" / "secret", b"x").chmod(0)
    assert "Permission denied" in hash_tree(tmp_path / "raw").unreadable[0].unreadable


def test_a_broken_cache_costs_time_only(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"text")
    expected = cached_hash(path, tmp_path / "w")[0]
    cache = tmp_path / "w" / ".cache" / "raw-hashes.jsonl"
    good = cache.read_bytes()
    cache.write_bytes(b"{}\n\x00\x00\n[1]\n" + good + good[:20])
    assert cached_hash(path, tmp_path / "w") == (expected, 0)
    assert cache.read_bytes() == good, "broken lines are removed"
    cache.write_bytes(b"\xff" * 100)
    assert cached_hash(path, tmp_path / "w") == (expected, 1)


def test_the_cache_does_not_grow_for_ever(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"text")
    cached_hash(path, tmp_path / "w")
    cache = tmp_path / "w" / ".cache" / "raw-hashes.jsonl"
    line = cache.read_bytes()
    cache.write_bytes(line * 2000)  # the same file, changed again and again
    assert cached_hash(path, tmp_path / "w")[1] == 0
    assert cache.read_bytes() == line


def test_a_workspace_that_cannot_be_written_still_gives_hashes(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", b"text")
    (tmp_path / "w").write_text("a file where the workspace should be")
    assert cached_hash(path, tmp_path / "w")[0] == hash_file(path)


def test_three_thousand_unchanged_files_are_checked_in_a_moment(tmp_path: Path) -> None:
    for number in range(3000):
        write(tmp_path / "raw" / str(number % 20) / f"{number}.txt", b"%d" % number)
    with HashCache(tmp_path / "w") as cache:
        first = hash_tree(tmp_path / "raw", cache)
    start = time.process_time()
    with HashCache(tmp_path / "w") as cache:
        second = hash_tree(tmp_path / "raw", cache)
        assert (cache.hits, cache.misses) == (3000, 0)
    assert second == first
    assert time.process_time() - start < 1.0


def test_a_file_written_to_while_it_is_read_is_an_error(tmp_path: Path, killer: Killer) -> None:
    path = write(tmp_path / "growing", bytes(20_000_000))
    killer.start(["sh", "-c", f"while true; do echo more >> {path}; done"])
    with pytest.raises(InputError, match="changed while it was read"):
        hash_for_seconds(tmp_path, 20)


def hash_for_seconds(root: Path, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        hash_tree(root)
