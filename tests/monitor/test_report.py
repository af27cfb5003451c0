"""The report: one file, no request, everything in it, whatever the record lacks and however hostile its texts are."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from headwater.monitor import MetricsRecord, write_report
from tests.monitor.records import write_run

HOSTILE = (
    "</script><script>document.title='owned'</script><img src=x onerror=document.title='owned'>&amp;\u2028{{data}}"
)


class Page(HTMLParser):
    """What a browser's parser sees of a page: tags, addresses, the text of each script."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.urls: list[str] = []
        self.scripts: list[str] = []
        self.policy = ""
        self.text = path.read_text("utf-8")
        self.feed(self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        given = dict(attrs)
        self.urls += [value or "" for name, value in attrs if name in ("src", "href", "action", "srcset")]
        if given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given["content"] or ""
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.scripts and self.tags[-1] == "script":
            self.scripts[-1] += data

    @property
    def data(self) -> dict[str, Any]:
        parsed: dict[str, Any] = json.loads(self.scripts[0])
        return parsed


def test_a_report_carries_everything_and_asks_for_nothing(tmp_path: Path) -> None:
    extra = {
        "title": "quickstart <中文>",
        "tables": [{"title": "Evaluation", "columns": ["model", "bits/byte"], "rows": [["ours", 1.88]], "note": ""}],
        "lineage": [{"stage": "dataset", "fingerprint": "abc123", "note": "8.1 M tokens"}],
    }
    run = write_run(tmp_path / "run", 300, spike=150, finished=True)
    page = Page(write_report(run, tmp_path / "out" / "report.html", extra))
    assert page.tags.count("script") == 2
    assert [url for url in page.urls if not url.startswith(("#", "data:"))] == []
    assert not re.search(r"@import|url\(|https?://(?!www\.w3\.org/2000/svg)", page.text)
    assert page.policy.startswith("default-src 'none'; style-src 'sha256-")
    assert page.data["title"] == "quickstart <中文>"
    assert page.data["tables"] == extra["tables"]
    assert page.data["lineage"] == extra["lineage"]
    (one,) = page.data["runs"]
    assert one["view"]["status"]["state"] == "finished"
    assert {event["title"] for event in one["view"]["events"]} >= {"loss spike", "samples skipped", "learning rate"}
    assert "train:" in one["view"]["recipe"]
    assert len(page.text) < 400_000


def test_what_the_pipeline_knew_of_a_run_stands_in_a_report_written_later(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 20)
    (run / "report.json").write_text(json.dumps({"title": "known", "tables": [{"title": "t", "columns": []}]}))
    assert Page(write_report(run, tmp_path / "r.html")).data["title"] == "known"
    (run / "report.json").write_text("{torn")
    assert Page(write_report(run, tmp_path / "r.html")).data["title"] == "run"


def test_several_runs_stand_in_one_report(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, 40, seed=seed) for seed, name in enumerate(("a", "运行 b", "c"))]
    data = Page(write_report(runs[0], tmp_path / "r.html", compare=runs[1:])).data
    assert [run["view"]["name"] for run in data["runs"]] == ["a", "运行 b", "c"]
    assert data["subtitle"] == "a · 运行 b · c"


def test_hostile_texts_stay_texts(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 20)
    with MetricsRecord(run / "metrics.jsonl") as record:
        record.append({"step": 21, "loss": 2.0, "val_loss": {"all": 2.0, HOSTILE: 2.1}, HOSTILE: 3.0})
    for name, key in (("events", "message"), ("samples", "text")):
        with open(run / f"{name}.jsonl", "a") as file:
            file.write(json.dumps({"event": HOSTILE, "step": 3, key: HOSTILE}) + "\n")
    (run / "recipe.yaml").write_text(HOSTILE)
    page = Page(write_report(run, tmp_path / "r.html", {"title": HOSTILE, "subtitle": HOSTILE}))
    assert page.tags.count("script") == 2
    assert "img" not in page.tags
    assert "<script>document" not in page.text
    assert page.data["title"] == HOSTILE


@pytest.mark.parametrize(
    "content",
    [b"", b'{"step": 1}\n', b"garbage\n", b'{"step": 1, "loss": "NaN", "val_loss": null}\n', b'{"step": NaN}\n'],
)
def test_a_poor_record_still_gives_a_page(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(content)
    assert Page(write_report(tmp_path, tmp_path / "r.html")).data["runs"]
    assert Page(write_report(tmp_path / "nothing", tmp_path / "r2.html")).data["runs"]


def test_a_long_run_makes_a_small_page_without_losing_a_spike(tmp_path: Path) -> None:
    with MetricsRecord(tmp_path / "metrics.jsonl") as record:
        for step in range(1, 20_001):
            record.append({"step": step, "loss": 9.0 if step == 7777 else 2.0, "loss_sma": 2.0, "lr": 1e-3})
    path = write_report(tmp_path, tmp_path / "r.html")
    assert path.stat().st_size < 300_000
    loss = next(panel for panel in Page(path).data["runs"][0]["view"]["panels"] if panel["id"] == "loss")
    raw = loss["lines"][0]
    assert raw["y"][raw["s"].index(7777)] == 9.0
