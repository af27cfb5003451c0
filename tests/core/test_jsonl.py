"""Canonical JSON is stable; JSON Lines logs survive kills, full disks and broken lines."""

from __future__ import annotations

import json
import math
import resource
import signal
import subprocess
import sys
from enum import StrEnum
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.core.errors import InputError
from headwater.core.jsonl import JsonlLog, canonical_json, json_safe, parse_json, pretty_json, read_jsonl
from tests.conftest import REPOSITORY, Killer

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | FLOATS | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=15,
)
OBJECTS = st.dictionaries(st.text(max_size=5), PLAIN, max_size=4)


def shuffled(value: object) -> object:
    """The same value with every object's keys in the opposite order."""
    if isinstance(value, dict):
        return {key: shuffled(item) for key, item in reversed(value.items())}
    return [shuffled(item) for item in value] if isinstance(value, list) else value


@given(PLAIN)
def test_canonical_json_reads_back_equal_and_again_gives_the_same_bytes(value: object) -> None:
    data = canonical_json(value)
    assert json.loads(data) == value
    assert canonical_json(parse_json(data)) == data
    assert b"\n" not in data


@given(PLAIN)
def test_canonical_json_ignores_the_order_of_keys(value: object) -> None:
    assert canonical_json(shuffled(value)) == canonical_json(value)
    assert pretty_json(shuffled(value)) == pretty_json(value)


@given(FLOATS, FLOATS)
def test_two_floats_have_the_same_bytes_exactly_when_they_are_equal(one: float, other: float) -> None:
    assert (canonical_json(one) == canonical_json(other)) == (one == other)


def test_canonical_json_of_known_values_never_changes() -> None:
    value = {"b": [1, 1.0, 1e22, 1e-7, 0.1, -0.0, 2**70, True, None], "a": "长江\n\x7f\u2028", "é": ("x",), "": {}}
    assert canonical_json(value).decode() == (
        '{"":{},"a":"长江\\n\x7f\u2028","b":[1,1.0,1e+22,1e-07,0.1,0.0,1180591620717411303424,true,null],"é":["x"]}'
    )


class Colour(StrEnum):
    RED = "red"


def test_an_enum_of_strings_is_its_value() -> None:
    assert canonical_json({Colour.RED: Colour.RED}) == b'{"red":"red"}'


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_json_does_not_have_are_refused_with_their_place(value: float) -> None:
    with pytest.raises(ValueError, match=r"\$\.train\.lr\[1\] is"):
        canonical_json({"train": {"lr": [1.0, value]}})
    assert canonical_json(json_safe({"lr": [1.0, value], "x": (2,)})).startswith(b'{"lr":[1.0,"')


@pytest.mark.parametrize(("value", "place"), [({1: 2}, "key 1"), ({"a": {2}}, r"\$\.a is a set"), ([b"x"], r"\$\[0\]")])
def test_what_json_would_change_is_refused(value: object, place: str) -> None:
    with pytest.raises(TypeError, match=place):
        canonical_json(value)


def test_a_file_name_that_is_not_utf8_can_be_written() -> None:
    name = b"caf\xe9".decode("utf-8", "surrogateescape")
    assert canonical_json(name) == b'"caf\\udce9"'
    assert parse_json(canonical_json(name)) == name


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", "{", "", "1 2", "\ufeff1"])
def test_only_json_is_parsed(text: str) -> None:
    with pytest.raises(ValueError):
        parse_json(text)


@given(st.lists(OBJECTS, max_size=5), st.data())
def test_a_log_cut_anywhere_keeps_its_whole_lines_and_goes_on(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, object]], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("log") / "events.jsonl"
    with JsonlLog(path) as log:
        for row in rows:
            log.append(row)
    whole = path.read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    kept = whole[:cut].count(b"\n")
    kept += cut < len(whole) and whole[cut : cut + 1] == b"\n"  # a line that lacks only its newline is whole
    assert list(read_jsonl(path)) == rows[:kept]
    with JsonlLog(path) as log:
        log.append({"next": 1})
    assert list(read_jsonl(path)) == [*rows[:kept], {"next": 1}]


def test_a_torn_line_is_removed_and_its_size_told(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"a":1}\n{"b":' + b"x" * 200_000)
    with JsonlLog(path) as log:
        assert log.torn_bytes == 200_005
    assert path.read_bytes() == b'{"a":1}\n'
    path.write_bytes(b"12")  # a number does not say where it ends: it may be the start of 123
    assert list(read_jsonl(path)) == []


def test_a_broken_line_in_the_middle_is_reported_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"a":1}\n\n{"a":\n\xff\xff\n{"a":NaN}\n' + b"[" * 100_000 + b'\n{"a":2}\n{"a')
    seen: list[tuple[int, int]] = []
    assert list(read_jsonl(path, lambda line, offset, reason: seen.append((line, offset)))) == [{"a": 1}, {"a": 2}]
    assert seen == [(3, 9), (4, 15), (5, 18), (6, 28)]
    with pytest.raises(InputError, match=r"log.jsonl:3: line is not JSON"):
        list(read_jsonl(path))


def test_a_missing_log_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read"):
        list(read_jsonl(tmp_path / "none.jsonl"))


def test_a_refused_object_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    with JsonlLog(tmp_path / "log.jsonl", fsync=True) as log:
        log.append({"loss": 1.0})
        with pytest.raises(ValueError):
            log.append({"loss": math.nan})
        log.append({"loss": "NaN"}, fsync=False)
        log.sync()
    assert [row["loss"] for row in read_jsonl(log.path)] == [1.0, "NaN"]
    with pytest.raises(ValueError, match="closed"):
        log.append({})


def test_a_full_disk_leaves_no_half_line(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from headwater.core.jsonl import JsonlLog\n"
        "from headwater.core.errors import DiskSpaceError\n"
        "log = JsonlLog(Path(sys.argv[1]))\n"
        "try:\n    for number in range(1000): log.append({'number': number})\n"
        "except DiskSpaceError as error: sys.exit(str(error))\n"
    )
    path = tmp_path / "log.jsonl"
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1001, 1001)),
    )
    assert done.returncode == 1
    assert "mend: free some space" in done.stderr
    assert path.read_bytes().endswith(b"}\n")
    numbers = [row["number"] for row in read_jsonl(path)]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) > 50


def test_a_log_killed_at_random_moments_loses_nothing_it_acknowledged(tmp_path: Path, killer: Killer) -> None:
    script = (
        "import sys; from pathlib import Path; from headwater.core.jsonl import JsonlLog, read_jsonl\n"
        "path = Path(sys.argv[1])\n"
        "first = sum(1 for _ in read_jsonl(path)) if path.exists() else 0\n"
        "log, told = JsonlLog(path), JsonlLog(Path(sys.argv[2]))\n"
        "for number in range(first, 10**9): log.append({'number': number, 'x': 'y' * (number % 5000)}); "
        "told.append({'number': number})\n"
    )
    path, told = tmp_path / "log.jsonl", tmp_path / "told.jsonl"
    for _ in range(6):
        code = killer.kill_after([sys.executable, "-c", script, path, told], killer.random.uniform(0.1, 0.4))
        assert code is None or code == -signal.SIGKILL
        acknowledged = sum(1 for _ in read_jsonl(told)) if told.exists() else 0
        numbers = [row["number"] for row in read_jsonl(path)] if path.exists() else []
        assert numbers == list(range(len(numbers))), f"seed {killer.seed}"
        assert len(numbers) >= acknowledged
    assert len(numbers) > 0


def test_the_module_reads_without_heavy_imports() -> None:
    script = "import sys, headwater.core.jsonl; sys.exit(len({'numpy', 'pydantic', 'rich'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, check=False).returncode == 0
