"""The report: one file, no request, everything in it, whatever the record lacks."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headwater.monitor import MetricsRecord, write_report
from headwater.monitor.svg import Series, line_chart, short, thin, ticks

VOID = {"meta", "link", "br", "hr", "img", "input", "path", "circle", "mark"}


class Checker(HTMLParser):
    """Collects tags and attributes, and checks that elements close in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.urls: list[str] = []
        self.text: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.urls += [value or "" for name, value in attrs if name in ("src", "href", "action", "srcset")]
        if tag not in VOID or tag == "mark":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, tag
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def check(path: Path) -> Checker:
    page = path.read_text("utf-8")
    checker = Checker()
    checker.feed(page)
    assert checker.open == []
    assert checker.urls == []
    assert not re.search(r"https?://|@import|url\(", page)
    return checker


def full_run(folder: Path, steps: int = 300) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with MetricsRecord(folder / "metrics.jsonl") as record:
        for step in range(1, steps + 1):
            loss = 2 + 6 * math.exp(-step / 60)
            row = {
                "step": step, "tokens": step * 8192, "loss": loss + 0.1 * (step % 3), "loss_sma": loss, "lr": 1e-3,
                "grad_norm": 1.0, "throughput": 9000.0, "mem_allocated": 5e8, "forward_backward_seconds": 0.8,
                "optimizer_seconds": 0.1, "data_wait_seconds": 0.01, "domain_tokens": {"web": step * 8192},
            }  # fmt: skip
            if step % 50 == 0:
                row["val_loss"] = {"all": loss, "web": loss}
                row["val_bits_per_byte"] = {"all": loss / 3, "web": loss / 3}
            record.append(row)
    (folder / "run.json").write_text(json.dumps({"steps": steps, "dataset": "abc123", "facts": {"device": "cpu"}}))
    (folder / "final.json").write_text(json.dumps({"checkpoint": "step-00000300"}))
    (folder / "recipe.yaml").write_text("name: 快速开始\n", "utf-8")
    (folder / "samples.jsonl").write_text(
        json.dumps({"step": 300, "prompt": "def ", "text": "水<script>alert(1)"}) + "\n"
    )
    (folder / "events.jsonl").write_text(json.dumps({"time": 1, "event": "resumed", "step": 3}) + "\n")
    return folder


def test_a_full_report_carries_everything_and_asks_for_nothing(tmp_path: Path) -> None:
    extra = {
        "title": "quickstart <中文>",
        "tables": [
            {"title": "Evaluation", "columns": ["model", "bits/byte"], "rows": [["ours", 1.88], ["5-gram", 2.21]]}
        ],
        "lineage": [{"stage": "dataset", "fingerprint": "abc123", "note": "8.1 M tokens"}],
    }
    out = write_report(full_run(tmp_path / "run"), tmp_path / "out" / "report.html", extra)
    checker = check(out)
    text = "".join(checker.text)
    for expected in (
        "quickstart <中文>",
        "Evaluation",
        "5-gram",
        "2.21",
        "abc123",
        "快速开始",
        "水<script>alert(1)",
        "resumed",
    ):
        assert expected in text
    assert checker.tags.count("figure") == 6
    assert checker.tags.count("script") == 1
    assert out.stat().st_size < 400_000


def test_it_is_made_for_dark_and_for_phones(tmp_path: Path) -> None:
    page = write_report(full_run(tmp_path / "run", 10), tmp_path / "r.html").read_text("utf-8")
    assert "prefers-color-scheme:dark" in page
    assert 'name="viewport" content="width=device-width' in page


@pytest.mark.parametrize(
    "content", [b"", b'{"step": 1}\n', b"garbage\n", b'{"step": 1, "loss": "NaN", "val_loss": null}\n']
)
def test_a_poor_record_still_gives_a_page(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(content)
    check(write_report(tmp_path, tmp_path / "r.html"))
    check(write_report(tmp_path / "nothing", tmp_path / "r2.html"))


def test_a_long_run_makes_a_small_page_without_losing_a_spike(tmp_path: Path) -> None:
    with MetricsRecord(tmp_path / "metrics.jsonl") as record:
        for step in range(1, 20_001):
            record.append({"step": step, "loss": 9.0 if step == 7777 else 2.0, "loss_sma": 2.0, "lr": 1e-3})
    page = write_report(tmp_path, tmp_path / "r.html")
    assert page.stat().st_size < 300_000
    assert "step 7777: 9" in page.read_text()


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=3000))
def test_thinning_keeps_the_extremes(values: list[float]) -> None:
    xs, ys = thin(list(range(len(values))), values, limit=100)
    assert len(xs) <= max(100, 0)
    assert max(ys) == max(values)
    assert min(ys) == min(values)
    assert xs == sorted(xs)


@given(st.floats(-1e12, 1e12), st.floats(1e-9, 1e12))
def test_ticks_lie_inside_and_are_few(low: float, width: float) -> None:
    assume(width > abs(low) * 1e-6)  # finer than that a float hardly resolves
    found = ticks(low, low + width)
    assert len(found) <= 6
    assert all(low - width * 1e-3 - 1e-12 <= tick <= low + width * 1.001 + 1e-12 for tick in found)


@given(st.lists(st.tuples(st.integers(0, 10**6), st.floats()), min_size=0, max_size=50), st.booleans())
def test_any_series_gives_a_well_formed_chart(points: list[tuple[int, float]], log_y: bool) -> None:
    points = sorted(points)
    svg = line_chart("t", "u", [Series("a&b", [p[0] for p in points], [p[1] for p in points])], log_y=log_y)
    checker = Checker()
    checker.feed(svg)
    assert checker.open == []
    assert "nan" not in svg.lower()


@pytest.mark.parametrize(
    ("value", "text"), [(12_000, "12k"), (3.5e6, "3.5M"), (0.02, "0.02"), (3e-4, "3e-04"), (0, "0")]
)
def test_axis_numbers_are_short(value: float, text: str) -> None:
    assert short(value) == text
