"""The Ray executor, in a process of its own: the cases are in `ray_cases.py`."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from headwater.core.errors import UserError
from headwater.core.executor import make_executor
from tests.conftest import REPOSITORY, clean_environment

HAS_RAY = importlib.util.find_spec("ray") is not None


@pytest.mark.skipif(not HAS_RAY, reason="the package ray is not installed (extra `ray`)")
def test_several_nodes_do_what_one_process_does() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/core/ray_cases.py"],
        cwd=REPOSITORY,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert "skipped" not in done.stdout


@pytest.mark.skipif(HAS_RAY, reason="the package ray is installed")
def test_without_the_package_the_mend_is_said() -> None:
    with pytest.raises(UserError, match="needs the package ray") as caught:
        make_executor("ray")
    assert "headwater[ray]" in caught.value.mend
