"""How long a checkpoint keeps training waiting: asynchronous saves against synchronous ones of the same state.

Both hash every file with SHA-256 and sync it to disk. The first save of each kind is apart: it is the one that gets
memory from the system. Synchronous and asynchronous saves alternate, so that a busy disk is busy for both.

    python benchmarks/checkpoint_async.py --gigabytes 1 --saves 5 --folder /tmp
    torchrun --nproc-per-node 2 benchmarks/checkpoint_async.py          # the state sharded over two ranks
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import torch

from headwater.parallel.agreement import Ranks
from headwater.parallel.environment import World, start, stop
from headwater.train.checkpoint import CheckpointStore

TENSORS = 48


def make_state(total_bytes: int, ranks: Ranks) -> dict[str, torch.Tensor]:
    """Weights and two moments a layer, fp32, as a trainer has them; sharded by rows over the ranks."""
    rows = total_bytes // TENSORS // 4 // 1024 // ranks.size * ranks.size
    if ranks.size == 1:
        return {f"layer.{number:02d}": torch.randn(rows, 1024) for number in range(TENSORS)}
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    mesh = init_device_mesh("cpu", (ranks.size,))
    return {
        f"layer.{number:02d}": DTensor.from_local(torch.randn(rows // ranks.size, 1024), mesh, [Shard(0)])
        for number in range(TENSORS)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--saves", type=int, default=5, help="of each kind, the first apart")
    parser.add_argument("--folder", type=Path, default=None, help="on the disk to measure")
    arguments = parser.parse_args()
    world = World.from_env()
    start(world, torch.device("cpu"))
    ranks, mine = Ranks.new(), Ranks.new()
    folder = ranks.on_first(lambda: Path(tempfile.mkdtemp(prefix="checkpoint-", dir=arguments.folder)))
    try:
        state = make_state(int(arguments.gigabytes * 1e9), ranks)
        store = CheckpointStore(folder, keep=1, ranks=mine)
        waited: dict[bool, list[float]] = {False: [], True: []}
        whole: dict[bool, list[float]] = {False: [], True: []}
        for number in range(2 * (arguments.saves + 1)):
            asynchronous = number % 2 == 1
            ranks.gather(0)
            started = time.perf_counter()
            store.save(number + 1, state, {}, asynchronous=asynchronous)
            waited[asynchronous].append(max(ranks.gather(time.perf_counter() - started)))
            store.wait()
            whole[asynchronous].append(store.poll()[0].seconds)
        store.close()
        size = sum(tensor.numel() * 4 for tensor in state.values())
        synchronous, blocking = statistics.median(waited[False][1:]), statistics.median(waited[True][1:])
        if ranks.first:
            print(json.dumps({
                "state_bytes": size,
                "ranks": ranks.size,
                "synchronous_seconds": round(synchronous, 3),
                "asynchronous_blocking_seconds": round(blocking, 3),
                "asynchronous_whole_seconds": round(statistics.median(whole[True][1:]), 3),
                "blocking_share": round(blocking / synchronous, 4),
                "first_synchronous": round(waited[False][0], 3),
                "first_blocking": round(waited[True][0], 3),
                "all_synchronous": [round(value, 3) for value in waited[False][1:]],
                "all_blocking": [round(value, 3) for value in waited[True][1:]],
                "torch": torch.__version__,
                "threads": torch.get_num_threads(),
                "machine": platform.processor() or platform.machine(),
            }, indent=1))  # fmt: skip
    finally:
        if ranks.first:
            shutil.rmtree(folder, ignore_errors=True)
        stop()


if __name__ == "__main__":
    main()
