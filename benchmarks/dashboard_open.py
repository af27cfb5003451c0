"""How long `headwater dashboard` takes to show a run of 100,000 steps in Chromium, from an address typed to all drawn.

A record of 25 figures a step is made, and a server process that has read nothing of it yet. Then a page is opened:
first (the server reads the whole record), and again (it has read it). Between the two lies what reading takes; the
second is what a page open beside a running training costs to load anew. Times are the clock's, from the start of the
navigation to the last curve drawn; beside them stands the processor time, which a busy machine changes little.

    python benchmarks/dashboard_open.py                  # needs Chromium; --steps 1000000 for a longer run
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))

from tests.monitor.chromium import Browser, Page, find_chromium  # noqa: E402
from tests.monitor.records import write_run  # noqa: E402

DRAWN = "document.documentElement.dataset.ready && document.querySelectorAll('figure.chart path.line').length > 10"


def opened(browser: Browser, url: str) -> tuple[float, float]:
    """(Seconds from the navigation until all is drawn, processor seconds of the page)."""
    page = browser.blank()
    page.call("Performance.enable", timeDomain="threadTicks")
    page.go(url)
    page.wait(DRAWN)
    # When the last curve was drawn, as the page itself noted it; asking takes time of its own.
    seconds = float(page.run("performance.getEntriesByName('drawn')[0].startTime")) / 1000
    busy = cpu_seconds(page)
    page.close()
    return seconds, busy


def cpu_seconds(page: Page) -> float:
    metrics = page.call("Performance.getMetrics")["metrics"]
    return float(next(item["value"] for item in metrics if item["name"] == "TaskDuration"))


def process_seconds(pid: int) -> float:
    """Processor seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if find_chromium() is None:
        sys.exit("no Chromium here; install one or set HEADWATER_CHROMIUM")
    first, again, work, read, load = [], [], [], [], os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder, Browser() as browser:
        run = write_run(Path(folder) / "runs" / "long", arguments.steps, spike=arguments.steps // 3)
        size = (run / "metrics.jsonl").stat().st_size
        for _ in range(arguments.repeat):
            server = subprocess.Popen(
                [sys.executable, "-m", "headwater.cli.main", "dashboard", str(folder), "--port", "0", "--json"],
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            )  # fmt: skip
            try:
                assert server.stdout is not None
                text = ""
                while not text.endswith("}\n"):
                    text += server.stdout.readline()
                url = json.loads(text)["url"]
                before = process_seconds(server.pid)
                first.append(opened(browser, url)[0])
                read.append(process_seconds(server.pid) - before)
                time.sleep(0.5)
                seconds, busy = opened(browser, url)
                again.append(seconds)
                work.append(busy)
            finally:
                server.send_signal(signal.SIGINT)
                server.wait()
        version = browser.call("Browser.getVersion")["product"]
    facts = {
        "steps": arguments.steps,
        "record_mb": round(size / 1e6, 1),
        "first_seconds": round(statistics.median(first), 2),
        "first_worst_seconds": round(max(first), 2),
        "server_cpu_seconds": round(statistics.median(read), 2),
        "again_seconds": round(statistics.median(again), 2),
        "page_cpu_seconds": round(statistics.median(work), 2),
        "cores": os.cpu_count(),
        "load_before": round(load, 1),
        "browser": version,
        "python": platform.python_version(),
    }
    if arguments.json:
        sys.stdout.write(json.dumps(facts) + "\n")
        return
    sys.stdout.write(
        f"{arguments.steps:,} steps, {facts['record_mb']} MB, {version}, Python {facts['python']}, "
        f"{facts['cores']} cores, load {facts['load_before']} before\n"
        f"  opened first  {facts['first_seconds']} s (median of {arguments.repeat}; slowest "
        f"{facts['first_worst_seconds']} s), of which the server computed {facts['server_cpu_seconds']} s\n"
        f"  opened again  {facts['again_seconds']} s, of which the page computed {facts['page_cpu_seconds']} s\n"
    )


if __name__ == "__main__":
    main()
