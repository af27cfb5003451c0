"""The pictures of the documentation, taken anew in a real Chromium: `python -m tests.monitor.pictures [RUN]`.

In: a run whose report is shown (without one, that picture stays as it is). Out: `docs/images/*.png`: the dashboard,
wide and on a phone, of runs whose figures the tests' generator made up; the report of RUN.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from pathlib import Path

from headwater.monitor import write_report
from headwater.monitor.web import RunList
from headwater.monitor.web.server import DashboardServer
from tests.monitor.chromium import Browser
from tests.monitor.records import write_run

IMAGES = Path(__file__).resolve().parent.parent.parent / "docs" / "images"
MAPS = "document.querySelector('#heat canvas').width > 10"


def small(path: Path) -> None:
    """A palette of 256 colours, which is a quarter of the bytes, where Pillow is installed."""
    try:
        from PIL import Image
    except ImportError:
        return
    with Image.open(path) as picture:
        picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)


def main(run: Path | None) -> None:
    with tempfile.TemporaryDirectory() as place, Browser() as browser:
        runs = Path(place) / "runs"
        write_run(runs / "zh-en-1b", 4000, seed=1, spike=1700, tensors=True, best=1.85)
        write_run(runs / "zh-en-1b-低学习率", 3200, seed=2, speed=1.1, best=1.95, tensors=True)
        with DashboardServer(RunList([Path(place)])) as server:
            threading.Thread(target=server.serve, daemon=True).start()
            shown = next(key for key, reader in server.runs.readers().items() if reader.path.name == "zh-en-1b")
            for name, width, height, dark in (("dashboard", 1280, 1350, False), ("dashboard-phone", 390, 1500, True)):
                page = browser.open(f"{server.url}#runs={shown}", width=width, dark=dark).ready()
                page.wait(MAPS)
                small(page.picture(IMAGES / f"{name}.png", height=height))
            server.shutdown()
        if run is not None:
            report = write_report(run, Path(place) / "report.html")
            page = browser.open(report.as_uri()).ready()
            small(page.picture(IMAGES / "report.png", height=950))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
