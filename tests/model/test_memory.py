"""Freed memory stays with the process."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

STEPS = """
import resource, numpy
from headwater.model.memory import keep_freed_memory
if {keep}:
    assert keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for step in range(6):
    before = faults()
    held = [numpy.ones(1 << 18) for _ in range(80)]  # 80 x 2 MiB
    del held
    print(faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_later_steps_map_no_fresh_pages() -> None:
    def run(keep: bool) -> list[int]:
        code = STEPS.format(keep=keep)
        lines = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
        return [int(line) for line in lines.split()]

    kept, returned = run(True), run(False)
    assert kept[0] > 1000  # 160 MiB had to come from somewhere
    assert max(kept[2:]) < 200
    assert max(returned[2:]) > 5 * max(*kept[2:], 100)  # some steps the C library keeps the pages by itself
