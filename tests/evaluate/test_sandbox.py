"""Hostile programs are contained and none of them scores; honest ones do."""

from __future__ import annotations

import gzip
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headwater
from headwater.core.errors import UserError
from headwater.evaluate.sandbox import Level, Limits, Outcome, Program, Sandbox, achieved, open_sandbox, wire

ADD = "def check(f):\n    assert f(1, 2) == 3\n    assert f(-1, 1) == 0\n"

pytestmark = pytest.mark.skipif(
    achieved()[0] is Level.NONE, reason=f"this machine has no Landlock and seccomp: {achieved()[1]}"
)


@pytest.fixture(params=["full", "reduced"], scope="module")
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    level = Level(request.param)
    if level.rank > achieved()[0].rank:
        pytest.skip(f"level {level.value} cannot be had here: {achieved()[1].get(level.value)}")
    with Sandbox(level, Limits(seconds=2, memory_bytes=512 << 20)) as made:
        yield made


def run(sandbox: Sandbox, body: str, head: str = "") -> Outcome:
    """A function `f(a, b)` whose body is hostile; a wrong answer would be returned if it got so far."""
    lines = "\n".join(f"    {line}" for line in body.strip().splitlines())
    return sandbox.check(f"{head}\ndef f(a, b):\n{lines}\n", ADD, entry_point="f")


def test_a_right_program_passes_and_a_wrong_one_fails(sandbox: Sandbox) -> None:
    assert run(sandbox, "return a + b").passed
    wrong = run(sandbox, "return a - b")
    assert not wrong.passed
    assert wrong.reason.startswith("AssertionError")


FORGERIES = {
    "leaves with exit code 0": "import os; os._exit(0)",
    "leaves with SystemExit": "raise SystemExit(0)",
    "claims to equal everything": "class Y(int):\n    def __eq__(self, o): return True\nreturn Y(7)",
    "returns an object with its own equality": "class Y:\n    def __eq__(self, o): return True\nreturn Y()",
    "switches assertions off": "import builtins; builtins.AssertionError = Exception; return 0",
    "patches what it can reach": "import sys, gc\nfor o in gc.get_objects():\n"
    "    if isinstance(o, dict) and 'check' in o: o['check'] = lambda f: None\nreturn 0",
    "writes a verdict to every descriptor": "import os\nfor fd in range(64):\n"
    "    try: os.write(fd, b'{\"passed\": true}\\n')\n    except OSError: pass\nreturn 0",
    "looks up the frames": "import sys\nframe = sys._getframe()\nwhile frame:\n    frame.f_globals['passed'] = True\n"
    "    frame = frame.f_back\nreturn 0",
    "answers before it is asked": "import os\nfor fd in range(3, 64):\n"
    '    try: os.write(fd, b\'{"value": {"i": "0x3"}}\\n{"value": {"i": "0x1"}}\\n\')\n'
    "    except OSError: pass\nreturn 9",
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_verdict_does_not_score(sandbox: Sandbox, name: str) -> None:
    assert not run(sandbox, FORGERIES[name]).passed


def test_a_fork_bomb_cannot_fork(sandbox: Sandbox) -> None:
    outcome = run(sandbox, "import os\nwhile True: os.fork()")
    assert not outcome.passed
    assert "PermissionError" in outcome.reason


def test_no_process_can_be_started_or_left_behind(sandbox: Sandbox) -> None:
    for body in (
        "import subprocess; return subprocess.run(['/bin/true']).returncode + 3",
        "import os; os.execv('/bin/sh', ['sh'])",
    ):
        assert not run(sandbox, body).passed
    left = run(sandbox, "import os\nif os.fork() == 0:\n    import time; time.sleep(60)\nreturn a + b")
    assert not left.passed


def test_threads_are_few_and_end_with_the_program(sandbox: Sandbox) -> None:
    started = time.monotonic()
    outcome = run(
        sandbox,
        "import threading, time\nfor _ in range(5000):\n"
        "    threading.Thread(target=time.sleep, args=(60,)).start()\nreturn 3",
    )
    assert not outcome.passed
    assert time.monotonic() - started < 20


def test_ten_gigabytes_are_refused(sandbox: Sandbox) -> None:
    outcome = run(sandbox, "x = bytearray(10 << 30)\nreturn 3")
    assert not outcome.passed
    assert "MemoryError" in outcome.reason


@pytest.mark.parametrize(
    "body",
    [
        "while True: pass",
        "import time; time.sleep(60)",
        "import signal, time\nsignal.signal(signal.SIGALRM, signal.SIG_IGN)\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(60)",
    ],
)
def test_an_endless_program_ends_in_time(sandbox: Sandbox, body: str) -> None:
    outcome = run(sandbox, body)
    assert (outcome.passed, outcome.reason) == (False, "timed out")
    assert 2 <= outcome.seconds < 6


def test_an_endless_program_ends_while_it_loads(sandbox: Sandbox) -> None:
    assert sandbox.check("while True: pass", ADD, entry_point="f").reason == "timed out"


def test_no_socket_can_be_opened(sandbox: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        outcome = run(sandbox, f"import socket\nsocket.create_connection(('127.0.0.1', {port}))\nreturn a + b")
    assert not outcome.passed
    assert "PermissionError" in outcome.reason


def test_no_file_outside_is_read_or_written(sandbox: Sandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("3")
    secret.chmod(0o666)
    for place in (secret, Path("/etc/passwd"), Path("/proc/self/environ"), Path(__file__)):
        outcome = run(sandbox, f"open({str(place)!r}).read()\nreturn a + b")
        assert not outcome.passed
        assert "PermissionError" in outcome.reason or "FileNotFound" in outcome.reason
    tmp_path.chmod(0o777)
    assert not run(sandbox, f"open({str(tmp_path / 'new')!r}, 'w').write('x')\nreturn a + b").passed
    assert not (tmp_path / "new").exists()
    assert not run(sandbox, f"import os; os.unlink({str(secret)!r})\nreturn a + b").passed
    assert secret.exists()


def test_the_scratch_folder_can_be_used_up_to_its_size(sandbox: Sandbox) -> None:
    assert run(sandbox, "open('note', 'w').write('x')\nreturn a + b").passed
    assert not run(sandbox, "f = open('big', 'wb')\nfor _ in range(100): f.write(bytes(1 << 20))\nreturn a + b").passed


def test_the_environment_holds_no_secrets(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", "hunter2")
    assert run(sandbox, "import os\nassert not set(os.environ) - {'LC_CTYPE'}\nreturn a + b").passed


@pytest.mark.parametrize("target", ["os.getppid()", "1", "-1", "os.getpid()", "PARENT"])
def test_nothing_can_be_killed(sandbox: Sandbox, target: str) -> None:
    outcome = run(
        sandbox,
        f"import os, signal\nos.kill({target.replace('PARENT', str(os.getpid()))}, signal.SIGKILL)\nreturn a + b",
    )
    assert not outcome.passed
    assert "PermissionError" in outcome.reason
    assert run(sandbox, "return a + b").passed


def test_huge_output_goes_nowhere_and_a_huge_result_is_refused(sandbox: Sandbox) -> None:
    assert run(sandbox, "print('x' * 50_000_000)\nreturn a + b").passed
    assert not run(sandbox, "return 'x' * 50_000_000").passed


def test_raw_system_calls_are_filtered_too(sandbox: Sandbox) -> None:
    ptrace = "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
    ptrace += "assert libc.syscall(NUMBER, 0, 0, 0, 0) == 0\nreturn a + b"
    for number in (101, 165, 272, 321, 41, 57):  # ptrace, mount, unshare, bpf, socket, fork on x86_64
        assert not run(sandbox, ptrace.replace("NUMBER", str(number))).passed


def test_deep_recursion_and_deep_results_fail_alone(sandbox: Sandbox) -> None:
    assert not run(sandbox, "return f(a, b)").passed
    assert not run(sandbox, "x = []\nfor _ in range(100_000): x = [x]\nreturn x").passed
    assert run(sandbox, "return a + b").passed


def test_helpers_of_the_prompt_serve_the_tests(sandbox: Sandbox) -> None:
    prompt = "import math\ndef encode(x):\n    return x * 2\ndef decode(x):\n    '''Undo encode.'''\n"
    tests = "def check(f):\n    assert f(encode(4)) == 4 and math.sqrt(4) == 2\n"
    assert sandbox.check(prompt + "    return x // 2\n", tests, entry_point="decode", prompt=prompt).passed


def test_a_program_that_does_not_define_the_function_or_parse_says_so(sandbox: Sandbox) -> None:
    assert "defines no f" in sandbox.check("g = 1", ADD, entry_point="f").reason
    assert sandbox.check("def f(:", ADD, entry_point="f").reason.startswith("SyntaxError")
    assert not sandbox.check("f = \x00", ADD, entry_point="f").passed


def test_every_reference_solution_of_humaneval_passes_and_empty_bodies_do_not(shared_data: Path) -> None:
    with gzip.open(shared_data / "eval" / "HumanEval.jsonl.gz", "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]

    def programs(body: str | None) -> list[Program]:
        return [
            Program(
                r["prompt"] + (r["canonical_solution"] if body is None else body),
                r["test"],
                r["entry_point"],
                r["prompt"],
            )
            for r in rows
        ]

    with open_sandbox(limits=Limits(seconds=10)) as sandbox:
        assert sum(outcome.passed for outcome in sandbox.check_all(programs(None), workers=2)) == 164
        assert sum(outcome.passed for outcome in sandbox.check_all(programs("    return 'wrong'\n"), workers=2)) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_an_ordinary_user_is_protected_as_well() -> None:
    """Nobody has no user id to give away: the other protections must hold alone."""
    python = Path("/usr/bin/python3")
    packages = Path(pydantic.__file__).parents[1]
    source = Path(headwater.__file__).parents[1]
    readable = all(p.stat().st_mode & 0o5 == 0o5 for place in (packages, source) for p in (place, *place.parents))
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if not (python.exists() and readable and version in os.path.realpath(python)):
        pytest.skip("no interpreter of this version and packages that every user can read")
    script = f"""if True:
        import os
        os.setgid(65534); os.setuid(65534)
        from headwater.evaluate.sandbox import Level, Limits, Sandbox
        bodies = ["import os; os.fork(); return 3", "import socket; socket.socket(); return 3",
            "open('/etc/passwd'); return 3", "import os; os.kill({os.getpid()}, 0); return 3",
            f"open('/proc/{{os.getpid()}}/mem', 'rb'); return 3", "import os; os._exit(0)"]
        for level in (Level.FULL, Level.REDUCED):
            with Sandbox(level, Limits(seconds=5)) as sandbox:
                for body in ["return a + b", *bodies]:
                    print(sandbox.check("def f(a, b): " + body, {ADD!r}, entry_point="f").passed)
    """
    done = subprocess.run(
        [python, "-c", script], env={"PYTHONPATH": f"{source}:{packages}"}, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == 2 * ["True", *6 * ["False"]]


def test_a_weaker_sandbox_than_wanted_is_refused() -> None:
    with pytest.raises(UserError, match="level reduced, and this one would be none"):
        open_sandbox(level=Level.NONE)
    with pytest.raises(ValueError, match="seconds must be above 0"):
        Limits(seconds=0)


def test_level_none_runs_when_asked_for_by_name() -> None:
    with open_sandbox(level=Level.NONE, minimum=Level.NONE) as sandbox:
        assert run(sandbox, "return a + b").passed
        assert run(sandbox, "return a").level is Level.NONE


LEAF = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
PLAIN = st.recursive(
    LEAF | st.complex_numbers(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(PLAIN)
def test_plain_values_cross_unchanged_in_value_and_type(value: object) -> None:
    got = wire.decode(json.loads(json.dumps(wire.encode(value))))
    assert got == value
    assert repr(got) == repr(value)


@given(st.frozensets(st.integers() | st.text()))
def test_sets_cross_unchanged(value: frozenset[object]) -> None:
    for made in (value, set(value)):
        got = wire.decode(json.loads(json.dumps(wire.encode(made))))
        assert (got, type(got)) == (made, type(made))
