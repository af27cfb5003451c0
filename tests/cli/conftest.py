"""Running a command line in this process: the same code as the installed command, without starting Python and torch."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import CliResult

Call = Callable[..., CliResult]


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Call:
    """`call("export", "run", "--out", "model", cwd=folder)`: as `run_cli`, but in this process."""
    from headwater.cli.main import run_command

    def run(*arguments: str | Path, code: int = 0, cwd: Path | None = None) -> CliResult:
        monkeypatch.chdir(cwd or tmp_path)
        capfd.readouterr()
        found = run_command([str(argument) for argument in arguments])
        stdout, stderr = capfd.readouterr()
        assert found == code, f"headwater {' '.join(map(str, arguments))} gave {found}\n{stderr}"
        parsed = json.loads(stdout) if "--json" in arguments and stdout.strip() else None
        return CliResult(found, stdout, stderr, parsed)

    return run
