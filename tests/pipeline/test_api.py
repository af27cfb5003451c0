"""`import headwater`: nothing loads until it is used, and every stage is one call."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

import headwater


def test_importing_headwater_loads_no_part() -> None:
    code = "import sys, headwater; print([name for name in sys.modules if name.startswith('headwater.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", sorted(set(headwater.__all__) - {"STAGE_CALLS", "__version__"}))
def test_every_public_call_is_there_and_documented(name: str) -> None:
    function = getattr(headwater, name)
    assert callable(function)
    assert function.__doc__


@pytest.mark.parametrize("place", headwater.STAGE_CALLS.values())
def test_every_stage_call_is_where_it_says(place: str) -> None:
    module, _, name = place.partition(":")
    assert callable(getattr(import_module(module), name))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'rnu'"):
        _ = headwater.rnu
    assert "run" in dir(headwater)
