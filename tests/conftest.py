"""What all tests share: the real corpora, the installed command, and processes killed at random moments."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

REPOSITORY = Path(__file__).resolve().parent.parent

# Started in the background of a shell, this process ignores SIGINT, and all it starts would too.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("headwater", deadline=None, print_blob=True)  # a busy machine is not a failing test
settings.load_profile("headwater")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long runs are asked for by `pytest -m soak`."""
    if "soak" not in config.getoption("-m"):
        for item in items:
            if item.get_closest_marker("soak"):
                item.add_marker(pytest.mark.skip(reason="a long run; ask for it with `pytest -m soak`"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real corpora: $HEADWATER_SHARED_DATA, else ../shared/data beside the repository."""
    given = os.environ.get("HEADWATER_SHARED_DATA")
    folder = Path(given) if given else REPOSITORY.parent / "shared" / "data"
    if not (folder / "corpora").is_dir():
        pytest.skip(f"no corpora in {folder}; set HEADWATER_SHARED_DATA")
    return folder


@dataclass(frozen=True)
class CliResult:
    """What one run of `headwater` left: exit code, both streams, and the object on stdout if `--json` was given."""

    code: int
    stdout: str
    stderr: str
    json: Any


RunCli = Callable[..., CliResult]


def cli_command() -> list[str]:
    """The installed `headwater` of this interpreter's environment."""
    command = Path(sys.executable).with_name("headwater")
    assert command.exists(), f"{command} is missing: install the project (pip install -e .) into this environment"
    return [str(command)]


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a subprocess: one thread, no colours, plus `extra`."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "200", **(extra or {})}


@pytest.fixture
def run_cli(tmp_path: Path) -> RunCli:
    """`run_cli("run", "recipe.yaml", "--json")` runs the installed command in `tmp_path` and waits.

    Options: `code` the expected exit code (default 0; None accepts any), `cwd`, `env` (added), `timeout` in seconds,
    `input` text for stdin. With `--json` among the arguments stdout must be exactly one JSON object.
    """

    def run(
        *arguments: str | Path,
        code: int | None = 0,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = 120.0,
        input: str | None = None,
    ) -> CliResult:
        done = subprocess.run(
            [*cli_command(), *map(str, arguments)],
            cwd=cwd or tmp_path,
            env=clean_environment(env),
            timeout=timeout,
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
        said = f"headwater {' '.join(map(str, arguments))} exited with {done.returncode}\n{done.stderr}"
        assert code is None or done.returncode == code, said
        parsed = None
        if "--json" in arguments and done.stdout.strip():
            parsed = json.loads(done.stdout)
            assert isinstance(parsed, dict), f"--json printed no object: {done.stdout[:200]}"
        return CliResult(done.returncode, done.stdout, done.stderr, parsed)

    return run


class Killer:
    """Runs commands and kills them with SIGKILL; the moments come from `random`, whose seed a failing test prints."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self._running: list[subprocess.Popen[bytes]] = []

    def start(
        self, command: Sequence[str | Path], cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a command in a session of its own; stderr and stdout go to this test's stderr."""
        process = subprocess.Popen(
            [str(part) for part in command],
            cwd=cwd,
            env=clean_environment(env),
            stdin=subprocess.DEVNULL,
            stdout=sys.__stderr__,
            start_new_session=True,
        )
        self._running.append(process)
        return process

    def kill(self, process: subprocess.Popen[bytes]) -> bool:
        """SIGKILL the process alone, as the system's out-of-memory killer does; False if it had ended already."""
        if process.poll() is not None:
            return False
        process.kill()
        process.wait()
        return process.returncode == -signal.SIGKILL

    def kill_after(self, command: Sequence[str | Path], seconds: float, **options: Any) -> int | None:
        """Run a command; kill it after `seconds`. Its exit code if it ended by itself, None if it was killed."""
        process = self.start(command, **options)
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None if self.kill(process) else process.returncode

    def kill_until_done(
        self, command: Sequence[str | Path], *, kills: int, shortest: float, longest: float, **options: Any
    ) -> int:
        """Run a command again and again, killing it up to `kills` times at random moments, then let it finish.

        Returns how many kills hit. The command must end with 0.
        """
        hits = 0
        for _ in range(kills):
            code = self.kill_after(command, self.random.uniform(shortest, longest), **options)
            if code is not None:
                assert code == 0, f"{command} exited with {code} (seed {self.seed})"
                return hits
            hits += 1
        process = self.start(command, **options)
        assert process.wait(120) == 0, f"{command} exited with {process.returncode} (seed {self.seed})"
        return hits

    def close(self) -> None:
        for process in self._running:
            with suppress(ProcessLookupError):
                self.kill(process)


@pytest.fixture
def killer() -> Iterator[Killer]:
    """A `Killer` with a fresh seed, or $HEADWATER_TEST_SEED; what it started is gone when the test ends."""
    seed = int(os.environ.get("HEADWATER_TEST_SEED") or time.time_ns() % 2**32)
    print(f"HEADWATER_TEST_SEED={seed}")
    made = Killer(seed)
    yield made
    made.close()
