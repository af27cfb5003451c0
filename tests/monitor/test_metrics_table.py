"""The page on watching lists every metric as the registry has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.core.errors import InputError
from headwater.monitor.metrics_table import BEGIN, END, filled, table
from headwater.monitor.registry import METRICS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "watch.md"


def test_the_page_s_table_is_up_to_date() -> None:
    page = PAGE.read_text("utf-8")
    assert filled(page) == page, "run `python -m headwater.monitor.metrics_table docs/watch.md`"


def test_every_metric_has_a_row_and_no_cell_breaks_it() -> None:
    rows = table().splitlines()[2:]
    assert len(rows) == len(METRICS)
    assert all(row.replace("\\|", "").count("|") == 6 for row in rows)


def test_a_page_without_the_marks_is_refused() -> None:
    assert filled(f"a {BEGIN}old{END} z").startswith("a ")
    with pytest.raises(InputError, match="no place"):
        filled("nothing here", "page.md")
