"""Does what a page says, block by block, in a folder of its own.

In: a page and a prepared folder. Out: nothing, or an AssertionError that names the page's line. Plain `headwater`
commands run in this process (no new Python, no new torch); those with pipes, patterns or other programs run in bash
with the installed command; servers and commands that end with `&` run beside, and are stopped with Ctrl-C at the end.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from glob import glob
from pathlib import Path

import pytest

from tests.conftest import clean_environment
from tests.docs.pages import Block, Command, blocks, commands

NEEDS_A_SHELL = re.compile(r"[|<>&;$`?~]")
INTO_A_FILE = re.compile(r" > ([\w.-]+)$")
QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
FILE_NAME = re.compile(r"# ([\w.-]+\.yaml)\n")
PORTS = ("8080", "8000", "9100", "9095")
"""Ports the pages use; each page gets free ones in their place."""


class PageRunner:
    """One page at work. `smaller` replaces figures that would take minutes; `excluded` commands are left out."""

    def __init__(
        self,
        folder: Path,
        patch: pytest.MonkeyPatch,
        capture: pytest.CaptureFixture[str],
        *,
        smaller: dict[str, str],
        excluded: dict[str, str],
    ) -> None:
        self.folder, self._patch, self._capture = folder, patch, capture
        self._excluded = excluded
        self._replace = {**smaller, **{port: str(_free_port()) for port in PORTS}}
        self._beside: list[tuple[Command, _Beside]] = []
        for name, value in clean_environment().items():
            patch.setenv(name, value)
        patch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        patch.chdir(folder)

    def run(self, page: Path) -> None:
        try:
            for block in blocks(page):
                self._block(block)
            for command, process in self._beside:
                code = process.interrupt()
                assert code in (0, 130), f"{command.place}: Ctrl-C on {command.text} gave {code}\n{process.said()}"
        finally:
            for _, process in self._beside:
                process.kill()

    def _block(self, block: Block) -> None:
        if block.language == "python":
            self._python(block)
        elif block.language == "yaml" and (name := FILE_NAME.match(block.text)):
            (self.folder / name[1]).write_text(block.text, encoding="utf-8")
        for command in commands(block):
            if command.text not in self._excluded:
                self._command(command)

    def _python(self, block: Block) -> None:
        code = compile("\n" * (block.line - 1) + self._adapted(block.text), block.place, "exec")
        try:
            exec(code, {"__name__": "__main__"})
        except Exception as error:
            raise AssertionError(f"{block.place}: {type(error).__name__}: {error}") from error

    def _command(self, command: Command) -> None:
        text = self._adapted(command.text)
        if text.startswith("export "):
            name, _, value = text.removeprefix("export ").partition("=")
            self._patch.setenv(name, shlex.split(value)[0])
            return
        if text.endswith("&") or text.startswith("headwater serve "):
            process = _Beside(text.removesuffix("&").strip(), self.folder)
            self._beside.append((command, process))
            if text.startswith("headwater serve "):
                process.wait_for("serving ")
            return
        plain = text.startswith("headwater ") and not NEEDS_A_SHELL.search(QUOTED.sub("", INTO_A_FILE.sub("", text)))
        code, said = self._here(text) if plain else self._shell(text)
        assert code == command.code, f"{command.place}: {text}\nexited with {code}, not {command.code}\n{said}"
        refused = text.startswith("curl ") and '"error"' in said
        assert not refused, f"{command.place}: {text}\nis answered with an error\n{said}"
        missing = _first_missing(said, [self._adapted(line) for line in command.output])
        assert missing is None, f"{command.place}: {text}\ndoes not print {missing!r} (or not there), but\n{said}"

    def _here(self, text: str) -> tuple[int, str]:
        from headwater.cli.main import run_command

        into = INTO_A_FILE.search(text)
        self._capture.readouterr()
        code = run_command([name for word in shlex.split(INTO_A_FILE.sub("", text))[1:] for name in _expanded(word)])
        printed = self._capture.readouterr()
        if into:
            (self.folder / into[1]).write_text(printed.out, encoding="utf-8")
        return code, printed.out + printed.err

    def _shell(self, text: str) -> tuple[int, str]:
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", text],
            cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            encoding="utf-8", errors="replace", timeout=60, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout

    def _adapted(self, text: str) -> str:
        for was, now in self._replace.items():
            text = re.sub(rf"(?<!\d){re.escape(was)}(?!\d)", now, text)
        return text


class _Beside:
    """A command that goes on while the page goes on."""

    def __init__(self, text: str, folder: Path) -> None:
        self._process = subprocess.Popen(
            ["bash", "-c", f"exec {text}"],
            cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            encoding="utf-8", errors="replace",
        )  # fmt: skip
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.append(line)

    def said(self) -> str:
        return "".join(self._lines)

    def wait_for(self, words: str, seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while words not in self.said():
            late = self._process.poll() is not None or time.monotonic() > end
            assert not late, f"never said {words!r}:\n{self.said()}"
            time.sleep(0.02)

    def interrupt(self) -> int:
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGINT)
        code = self._process.wait(60)
        self._reader.join(10)
        return code

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def _expanded(word: str) -> list[str]:
    """What a shell makes of a word with `*` in it; one that matches nothing stays."""
    return (sorted(glob(word)) if "*" in word else []) or [word]


def _first_missing(said: str, shown: list[str]) -> str | None:
    """The first line of a page's output that is not printed, in this order; `...` stands for anything."""
    lines, at = said.splitlines(), 0
    for line in shown:
        if not line.strip(" .…"):
            continue
        pattern = re.compile(".*".join(re.escape(part) for part in line.rstrip().split("...")) + r"\s*")
        found = next((place for place in range(at, len(lines)) if pattern.fullmatch(lines[place])), None)
        if found is None:
            return line
        at = found + 1
    return None


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
