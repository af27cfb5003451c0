"""The Ray executor: several nodes on one machine give the bytes of inline and processes, whoever is killed.

Run by `test_ray_executor.py` in a process of its own: ray leaves threads behind, and other tests fork.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from headwater.core.errors import InputError, UserError
from headwater.core.executor import WorkerDiedError, make_executor
from headwater.core.files import sha256_file
from headwater.core.ray_executor import RayExecutor
from headwater.core.shards import ShardFolder
from headwater.core.stage import StageContext
from headwater.curate.config import CollectConfig, CurateConfig
from headwater.curate.stage import collect_into
from tests.core import work
from tests.curate.helpers import Told, collect, curate, hashes, write_rows
from tests.curate.test_site_lines import page


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Three Ray nodes of one core each on this machine."""
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 80 << 20})
    try:
        for _ in range(2):
            made.add_node(num_cpus=1, object_store_memory=80 << 20)
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


@pytest.fixture(scope="module")
def executor(cluster: Any) -> Iterator[RayExecutor]:
    with RayExecutor(cluster.address) as made:
        assert made.workers == 3
        yield made


def test_an_address_without_a_cluster_is_the_users_error() -> None:
    with pytest.raises(UserError, match="no Ray cluster at 'auto'"):
        _ = RayExecutor("auto").workers


def test_results_come_in_order_and_the_first_failing_item_is_raised(executor: RayExecutor) -> None:
    assert list(executor.map(work.slow_if_even, range(20))) == list(range(20))
    assert list(executor.map(work.double, [])) == []
    results = executor.map(work.fail_at_three_and_seven, range(10))
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="three") as caught:
        next(results)
    assert "fail_at_three_and_seven" in caught.value.__notes__[0], "the worker's traceback travels along"
    with pytest.raises(InputError) as ours:
        list(executor.map(work.raise_input_error, [1]))
    assert (ours.value.what, ours.value.where, ours.value.mend) == ("bad row", "a.jsonl:1", "mend it")


def test_an_item_whose_worker_is_killed_is_done_by_another(executor: RayExecutor, tmp_path: Path) -> None:
    def kill_the_first() -> int:
        victim = _wait_for(tmp_path / "0.pid")
        os.kill(victim, signal.SIGKILL)
        (tmp_path / "go").touch()
        return victim

    with ThreadPoolExecutor(1) as thread:
        killed = thread.submit(kill_the_first)
        results = list(executor.map(work.wait_for_a_file, [(str(tmp_path), number) for number in range(4)]))
        victim = killed.result()
    numbers, workers = zip(*results, strict=True)
    assert numbers == (0, 1, 2, 3)
    assert victim not in workers


def test_an_item_that_kills_every_worker_is_an_error_that_names_it(executor: RayExecutor) -> None:
    with pytest.raises(WorkerDiedError, match="item 0 of 1") as caught:
        list(executor.map(work.leave, [7]))
    assert "fewer workers" in caught.value.mend


def test_a_stage_on_ray_gives_the_bytes_of_inline_and_of_processes(executor: RayExecutor, tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    for number in range(6):
        rows = [json.dumps({"text": f"第{number}篇 document {row} " * 20}) for row in range(40)]
        (raw / f"{number}.jsonl").write_text("\n".join(rows) + "\nnot json\n", "utf-8")
    noise = random.Random(1).randbytes(60_000).hex()
    shared = b"".join(b'{"text": "%s"}\n' % noise[at : at + 3000].encode() for at in range(0, len(noise), 3000))
    (raw / "6.jsonl.gz").write_bytes(gzip.compress(shared))
    config = CollectConfig(root=str(raw), sources=({"name": "a", "paths": ["*.jsonl*"]},), shard_bytes=30_000)
    digests = {}
    told = Told()
    for name, made in (
        ("inline", make_executor("inline")),
        ("process", make_executor("process", 2)),
        ("ray", executor),
    ):
        out = ShardFolder(tmp_path / name)
        out.dir.mkdir()
        collect_into(out, config, StageContext(tmp_path, made, told))
        if name != "ray":
            made.close()
        digests[name] = {path.name: sha256_file(path) for path in sorted(out.dir.rglob("*")) if path.is_file()}
    assert len(digests["inline"]) > 6
    assert sum("6.jsonl.gz is read by" in line for line in told.lines) == 2  # in processes and on Ray
    assert digests["ray"] == digests["inline"] == digests["process"]


def test_a_curation_on_ray_with_a_worker_killed_is_that_of_one_process_without_canaries(
    executor: RayExecutor, tmp_path: Path
) -> None:
    """Collected, cleaned, compared, cut and written: every kind of task, with canaries on Ray and in processes."""
    raw = tmp_path / "raw"
    rows = [
        {"text": f"{page(lang, seed)}\n{'!' * (copy == 1)}", "url": f"http://{lang}.example/{copy}/{seed}"}
        for lang in ("en", "zh")
        for seed in range(30)
        for copy in range(2)
    ]
    for number in range(6):
        write_rows(raw / f"{number}.jsonl", rows[number::6])
    sources = ({"name": "web", "paths": ["*.jsonl"], "domain": "web"},)
    collecting = CollectConfig(root=str(raw), sources=sources, shard_bytes=20_000)
    planted = CurateConfig(quality={"rules": []}, dedup={"ngram": True}, canaries={"documents": 8})
    bare = planted.model_copy(update={"canaries": planted.canaries.model_copy(update={"documents": 0})})
    corpora = {}
    with ThreadPoolExecutor(1) as thread:
        killed = thread.submit(_kill_a_busy_worker)
        collected = collect(tmp_path / "ray", collecting, executor)
        corpora["ray"] = curate(tmp_path / "ray", collected, planted, executor)
        assert killed.result(), "no worker was killed"
    with make_executor("process", 2) as processes:
        corpora["process"] = curate(
            tmp_path / "process", collect(tmp_path / "process", collecting, processes), planted, processes
        )
    corpora["bare"] = curate(tmp_path / "bare", collect(tmp_path / "bare", collecting), bare)
    contents = {
        name: {file: digest for file, digest in hashes(corpus).items() if file != "canaries.json"}
        for name, corpus in corpora.items()
    }
    assert contents["ray"] == contents["process"] == contents["bare"]
    assert {"dedup.minhash"} <= set(corpora["bare"].counts["dropped"])
    assert {"site.line"} <= set(corpora["bare"].counts["cut"])
    assert "canaries.json" in corpora["ray"].files()
    assert "canaries.json" not in corpora["bare"].files()


def _kill_a_busy_worker() -> bool:
    """Kill the first process of this cluster that is seen at work on an item."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                title = " ".join(process.cmdline())
                if title.startswith("ray::") and "IDLE" not in title:
                    process.kill()
                    return True
        time.sleep(0.005)
    return False


def _wait_for(path: Path) -> int:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        if path.exists() and (text := path.read_text()):
            return int(text)
        time.sleep(0.05)
    raise AssertionError(f"{path} did not appear")
