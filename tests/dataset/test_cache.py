"""The shard cache: the same data, within its limit, whatever is slow, damaged, killed or shared."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from headwater.core.errors import CorruptArtifactError, UserError
from headwater.core.files import TEMP_PREFIX
from headwater.dataset import Loader, StepOrder, StepSegment, TokenDataset
from headwater.dataset.cache import ShardCache
from headwater.dataset.shard import TokenShard
from tests.dataset.conftest import MakeDataset

SHARDS = 6
ALL = 10**9


@pytest.fixture
def dataset(make_dataset: MakeDataset) -> TokenDataset:
    """Six shards of 160 kB."""
    return make_dataset({("train", "web"): [[400] * 200] * SHARDS})


@pytest.fixture
def opened(dataset: TokenDataset, tmp_path: Path) -> Iterator[TokenDataset]:
    """The same dataset through a cache that has room for everything."""
    found = TokenDataset.open(dataset.path)
    found.cache = ShardCache(tmp_path / "cache", dataset.path, key="one", limit_bytes=ALL)
    yield found
    found.cache.close()


def names(dataset: TokenDataset) -> list[str]:
    return [shard["name"] for shard in dataset.index["splits"]["train"]["web"]["shards"]]


def shard_bytes(dataset: TokenDataset) -> int:
    return max((dataset.path / name).stat().st_size for name in names(dataset))


def forget(cache: ShardCache) -> None:
    """As if a second had passed."""
    cache._seen.clear()


def held(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.tokens") if not path.name.startswith(TEMP_PREFIX))


def test_what_is_read_is_the_same_and_comes_from_the_cache_once_it_is_there(
    dataset: TokenDataset, opened: TokenDataset
) -> None:
    assert opened.cache is not None
    stream, plain = opened.split("train").domains["web"], dataset.split("train").domains["web"]
    first = stream.window(0, stream.tokens)
    assert not first.cached
    assert np.array_equal(first.tokens, plain.read(0, plain.tokens))
    assert opened.cache.settle()
    assert [path.name for path in held(opened.cache.folder)] == [Path(name).name for name in names(dataset)]
    again = stream.window(0, stream.tokens)
    assert again.cached
    assert np.array_equal(again.tokens, first.tokens)
    assert np.array_equal(again.documents, first.documents)
    assert opened.cache.copied_bytes == sum(path.stat().st_size for path in held(opened.cache.folder))


def test_a_batch_says_how_much_of_it_was_cached(opened: TokenDataset) -> None:
    assert opened.cache is not None
    split = opened.split("train")
    loader = Loader(split, StepOrder(split.sizes, seed=1, segments=[StepSegment(1, 8, 64)]), cache_ahead=4)
    assert loader.batch(1).cached_rows == 0
    for name in names(opened):
        opened.cache.request([name])
    assert opened.cache.settle()
    forget(opened.cache)
    assert loader.batch(1).cached_rows == 8


def test_the_limit_holds_and_the_least_recently_used_make_way(dataset: TokenDataset, tmp_path: Path) -> None:
    room = 3 * shard_bytes(dataset)
    cache = ShardCache(tmp_path / "cache", dataset.path, key="one", limit_bytes=room, idle_seconds=10.0)
    wanted = names(dataset)
    cache.request(wanted[:3])
    assert cache.settle()
    for age, name in ((100, wanted[1]), (50, wanted[0]), (0, wanted[2])):
        os.utime(cache.own / name, (time.time() - age,) * 2)
    cache.request(wanted[3:4])
    assert cache.settle()
    assert [path.name for path in held(cache.folder)] == [Path(wanted[i]).name for i in (0, 2, 3)]
    cache.request(wanted[4:])
    assert cache.settle()
    assert len(held(cache.folder)) == 3  # one more was idle; the others were just used and stay
    assert (cache.own / wanted[2]).exists()
    assert sum(path.stat().st_size for path in held(cache.folder)) <= room
    cache.close()


def test_two_datasets_share_one_limit(make_dataset: MakeDataset, dataset: TokenDataset, tmp_path: Path) -> None:
    room = 3 * shard_bytes(dataset)
    caches = [ShardCache(tmp_path / "cache", dataset.path, key=key, limit_bytes=room) for key in ("one", "two")]
    for cache in caches:
        cache.request(names(dataset))
        assert cache.settle()
    assert len(held(tmp_path / "cache")) == 3
    for cache in caches:
        cache.close()


def test_a_dataset_larger_than_the_cache_is_read_from_both(dataset: TokenDataset, tmp_path: Path) -> None:
    opened = TokenDataset.open(dataset.path)
    opened.cache = ShardCache(tmp_path / "cache", dataset.path, key="one", limit_bytes=2 * shard_bytes(dataset))
    split = opened.split("train")
    loader = Loader(split, StepOrder(split.sizes, seed=1, segments=[StepSegment(1, 8, 64)]), cache_ahead=4)
    plain = Loader(dataset.split("train"), loader.order)
    cached = 0
    for step, batch in enumerate(loader.iterate(1, 30), 1):
        assert np.array_equal(batch.tokens, plain.batch(step).tokens)
        cached += batch.cached_rows or 0
        time.sleep(0.01)
    assert 0 < cached < 240
    assert len(held(tmp_path / "cache")) == 2
    opened.cache.close()


@pytest.mark.parametrize("place", ["header", "block", "cut"])
def test_a_damaged_copy_is_read_from_the_dataset_and_copied_again(
    place: str, dataset: TokenDataset, opened: TokenDataset
) -> None:
    assert opened.cache is not None
    cache, name = opened.cache, names(dataset)[0]
    cache.request([name])
    assert cache.settle()
    path = cache.own / name
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[{"header": 20, "block": 5000, "cut": 0}[place]] ^= 255
    path.write_bytes(whole[:1000] if place == "cut" else damaged)
    found = opened.split("train").domains["web"].read(0, 4000)
    assert np.array_equal(found, dataset.split("train").domains["web"].read(0, 4000))
    assert cache.settle()
    assert path.read_bytes() == whole


def test_a_damaged_shard_of_the_dataset_is_never_cached(dataset: TokenDataset, opened: TokenDataset) -> None:
    assert opened.cache is not None
    name = names(dataset)[2]
    data = bytearray((dataset.path / name).read_bytes())
    data[9000] ^= 1
    (dataset.path / name).write_bytes(data)
    opened.cache.request(names(dataset))
    assert opened.cache.settle()
    assert [path.name for path in held(opened.cache.folder)] == [Path(n).name for n in names(dataset) if n != name]
    stream = opened.split("train").domains["web"]
    with pytest.raises(CorruptArtifactError, match="block 0"):
        stream.read(0, stream.tokens)


def _copy_all(folder: Path, source: Path, wanted: list[str]) -> None:
    cache = ShardCache(folder, source, key="one", limit_bytes=ALL)
    cache.request(wanted)
    cache.settle()
    (folder / f"copied-{os.getpid()}").write_text(str(cache.copied_bytes))
    cache.close()


def test_processes_of_a_machine_share_the_copies(dataset: TokenDataset, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    folder = tmp_path / "cache"
    workers = [context.Process(target=_copy_all, args=(folder, dataset.path, names(dataset))) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
        assert worker.exitcode == 0
    assert len(held(folder)) == SHARDS
    for path in held(folder):
        TokenShard(path).verify()
    copied = sum(int(path.read_text()) for path in folder.glob("copied-*"))
    assert copied == sum(path.stat().st_size for path in held(folder))  # none twice


def _copy_slowly(folder: Path, source: Path, wanted: list[str]) -> None:
    class Slow(ShardCache):
        def _copy(self, source: Path, temp: Path) -> None:
            with open(source, "rb") as reader, open(temp, "r+b") as writer:
                writer.write(reader.read(1000))
                writer.flush()
                time.sleep(60)

    cache = Slow(folder, source, key="one", limit_bytes=ALL)
    cache.request(wanted)
    cache.settle()


def test_a_copy_that_was_killed_is_removed_and_made_by_another(dataset: TokenDataset, tmp_path: Path) -> None:
    folder, wanted = tmp_path / "cache", names(dataset)[:1]
    worker = multiprocessing.get_context("fork").Process(target=_copy_slowly, args=(folder, dataset.path, wanted))
    worker.start()
    deadline = time.monotonic() + 20
    while not list(folder.rglob(f"{TEMP_PREFIX}*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    cache = ShardCache(folder, dataset.path, key="one", limit_bytes=ALL)
    cache.request(wanted)
    assert cache.settle()
    assert not held(folder)  # the other process is at it
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()
    cache.request(wanted)
    assert cache.settle()
    assert len(held(folder)) == 1
    assert not list(folder.rglob(f"{TEMP_PREFIX}*"))
    cache.close()


class SlowStorage(TokenDataset):
    """Every window read from the dataset's own folder takes 20 ms."""

    def open_source(self, name: str) -> TokenShard:
        shard = super().open_source(name)
        plain = shard.tokens

        def slowly(start: int, stop: int) -> np.ndarray:
            time.sleep(0.02)
            return plain(start, stop)

        shard.tokens = slowly  # type: ignore[method-assign]
        return shard


def _waits(opened: TokenDataset, steps: int, cache_ahead: int) -> list[float]:
    """Seconds each step waits for its batch of 8 windows, with 30 ms of work a step."""
    split = opened.split("train")
    order = StepOrder(split.sizes, seed=1, segments=[StepSegment(1, 8, 64)])
    waits = []
    batches = Loader(split, order, cache_ahead=cache_ahead).iterate(1, steps)
    for _ in range(steps):
        started = time.perf_counter()
        next(batches)
        waits.append(time.perf_counter() - started)
        time.sleep(0.03)
    batches.close()
    return waits


def test_slow_storage_is_hidden_once_the_shards_are_copied(dataset: TokenDataset, tmp_path: Path) -> None:
    slow = SlowStorage.open(dataset.path)
    without = _waits(slow, 8, 0)
    assert np.median(without[3:]) > 0.08  # 8 windows of 20 ms against 30 ms of work
    slow = SlowStorage.open(dataset.path)
    slow.cache = ShardCache(tmp_path / "cache", dataset.path, key="one", limit_bytes=ALL)
    waits = _waits(slow, 25, 16)
    assert np.median(waits[-10:]) < np.median(without[3:]) / 5, waits
    slow.cache.close()


def test_a_cache_that_cannot_be_written_is_the_users_to_mend(dataset: TokenDataset, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        ShardCache(tmp_path / "file" / "cache", dataset.path, key="one", limit_bytes=ALL)
