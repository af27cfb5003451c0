"""The machine's exporter, as a process, asked over HTTP."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from headwater.monitor.exporter import Exporter
from headwater.monitor.live_metrics import MACHINE_METRICS
from tests.conftest import clean_environment, cli_command
from tests.monitor.test_prometheus import free_port

STUB = Path(__file__).with_name("nvml_stub.c")
DCGM = """
# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-a",device="nvidia0",modelName="NVIDIA H100",Hostname="n1",pod=""} 88
DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{gpu="0",UUID="GPU-a",device="nvidia0",modelName="NVIDIA H100",Hostname="n1"} 0.51
DCGM_FI_DEV_XID_ERRORS{gpu="0",UUID="GPU-a",device="nvidia0",modelName="NVIDIA H100",err_code="0"} 0
DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{gpu="0",UUID="GPU-a",device="nvidia0",modelName="NVIDIA H100"} 0
DCGM_FI_SOMETHING_NEW{gpu="0"} 1
"""


def scraped(url: str) -> dict[str, Metric]:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return {one.name: one for one in text_string_to_metric_families(answer.read().decode())}


def value(read: dict[str, Metric], name: str, **labels: str) -> float:
    (found,) = [one.value for one in read[name].samples if labels.items() <= one.labels.items()]
    return found


@pytest.mark.parametrize(("sign", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_every_machine_shows_cpu_memory_disk_and_network(tmp_path: Path, sign: signal.Signals, code: int) -> None:
    targets = tmp_path / "targets"
    process = subprocess.Popen(
        [*cli_command(), "exporter", "--port", str(free_port()), "--path", tmp_path, "--targets", targets, "--json"],
        stdout=subprocess.PIPE, text=True, env=clean_environment(),
    )  # fmt: skip
    assert process.stdout is not None
    with process.stdout as out:
        said = json.loads("".join(out.readline() for _ in range(4)))
        read = scraped(said["url"])
        assert [json.loads(path.read_text())[0]["targets"] for path in targets.iterdir()] == [
            [f"127.0.0.1:{said['port']}"]
        ]
        process.send_signal(sign)
        assert process.wait(20) == code
    assert list(targets.iterdir()) == []
    assert value(read, "machine_cpus") >= 1
    assert value(read, "machine_cpu_seconds", mode="user") > 0
    assert 0 < value(read, "machine_memory_available_bytes") < value(read, "machine_memory_total_bytes")
    usage = shutil.disk_usage(tmp_path)
    assert value(read, "machine_filesystem_size_bytes", mountpoint=str(tmp_path)) == usage.total
    assert value(read, "machine_network_receive_bytes", device="lo") >= 0
    assert value(read, "machine_source_up", source="cpu") == 1
    declared = {metric.prometheus.removesuffix("_total") for metric in MACHINE_METRICS}
    assert set(read) <= declared


def test_gpus_answer_through_the_drivers_library(tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C compiler is installed, which builds what stands in for the driver")
    source = tmp_path / "nvml.c"
    source.write_text(STUB.read_text())
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-x", "c", "-shared", "-fPIC", "-w", "-o", library, source], check=True)
    code = "from headwater.monitor.exporter import Exporter; import ctypes, sys; e = Exporter(port=int(sys.argv[1]));" \
        "print(e.url, flush=True); sys.stdin.read();" \
        "print(ctypes.CDLL('libnvidia-ml.so.1').stub_live_samples())"  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(free_port())], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=clean_environment({"LD_LIBRARY_PATH": str(tmp_path)}),
    )  # fmt: skip
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        first, read = scraped(url), scraped(url)
        later = [scraped(url) for _ in range(3)]
    finally:
        left, _ = process.communicate(timeout=20)
    assert all("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE" not in one for one in later), "the GPU counts no longer"
    assert int(left) == 0, "what a failed reading was to go into has been given back"
    gpu = {"gpu": "0", "UUID": "GPU-0", "device": "nvidia0", "modelName": "Stub H100"}
    assert value(read, "DCGM_FI_DEV_GPU_UTIL", **gpu) == 97
    assert value(read, "DCGM_FI_DEV_FB_USED", **gpu) == 50 * 1024
    assert value(read, "DCGM_FI_DEV_POWER_USAGE", **gpu) == 650.5
    assert value(read, "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", **gpu) == 4
    assert value(read, "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", **gpu) == 2
    assert "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE" not in first, "it is counted between two readings"
    assert value(read, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", **gpu) == 0.45
    assert "DCGM_FI_PROF_DRAM_ACTIVE" not in read, "what the GPU cannot tell is left out"
    assert value(first, "DCGM_FI_DEV_XID_ERRORS", **gpu) == 0
    assert value(read, "DCGM_FI_DEV_XID_ERRORS", **gpu) == 79
    second = {name for name, one in read.items() if any(s.labels.get("gpu") == "1" for s in one.samples)}
    assert second == {"DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE"}
    assert value(read, "machine_source_up", source="gpu") == 1


class _Dcgm(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(DCGM.encode())

    def log_message(self, *_: object) -> None:
        pass


def test_a_dcgm_exporters_figures_are_passed_on_and_one_that_is_down_is_told() -> None:
    server = HTTPServer(("127.0.0.1", 0), _Dcgm)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    exporter = Exporter(port=free_port(), dcgm=f"http://127.0.0.1:{server.server_port}/metrics")
    try:
        read = scraped(exporter.url)
        server.shutdown()
        server.server_close()
        down = scraped(exporter.url)
    finally:
        exporter.close()
        thread.join(10)
    assert value(read, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", gpu="0", modelName="NVIDIA H100") == 0.51
    assert value(read, "DCGM_FI_DEV_GPU_UTIL", gpu="0", UUID="GPU-a") == 88
    assert "DCGM_FI_SOMETHING_NEW" not in read
    assert value(down, "machine_source_up", source="gpu") == 0
    assert value(down, "machine_source_up", source="cpu") == 1
