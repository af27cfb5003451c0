"""The dashboard's server: it answers to this machine, under its own name, with what belongs to its runs and no more."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headwater.core.errors import InputError
from headwater.monitor import MetricsRecord
from headwater.monitor.web import RunList
from headwater.monitor.web.runs import newest_run
from headwater.monitor.web.server import DashboardServer
from tests.monitor.records import write_run

REPOSITORY = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ws")
    write_run(folder / "runs" / "first", 300, spike=100, finished=True, tensors=True)
    write_run(folder / "runs" / "第二", 200, seed=1)
    (folder / "secret.txt").write_text("not for the browser")
    return folder


@pytest.fixture(scope="module")
def server(workspace: Path) -> Iterator[DashboardServer]:
    with DashboardServer(RunList([workspace])) as one:
        thread = threading.Thread(target=one.serve, daemon=True)
        thread.start()
        yield one
        one.shutdown()
        thread.join()


def ask(
    server: DashboardServer, path: str, method: str = "GET", **headers: str
) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, headers=sent)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, answer.headers, body


def ask_json(server: DashboardServer, path: str) -> Any:
    status, _, body = ask(server, path)
    assert status == 200, body
    return json.loads(body)


def test_runs_and_their_figures_are_answered(server: DashboardServer) -> None:
    runs = ask_json(server, "/api/runs")
    assert {run["name"]: run["status"]["state"] for run in runs} == {"first": "finished", "第二": "stopped"}
    first = id_of(server, "first")
    view = ask_json(server, f"/api/view?run={first}")
    assert view["status"]["step"] == 300
    zoomed = ask_json(server, f"/api/view?run={first}&from=100&to=120&points=100")
    loss = next(panel for panel in zoomed["panels"] if panel["id"] == "loss")["lines"][0]
    assert loss["s"] == list(range(100, 121))
    heat = ask_json(server, f"/api/heat?run={first}&metric=head_entropy")
    assert heat["rows"][0]["kind"] == "head 0"


def id_of(server: DashboardServer, name: str) -> str:
    return str(next(run["id"] for run in ask_json(server, "/api/runs") if run["name"] == name))


def test_a_run_that_begins_later_appears_and_grows(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    with DashboardServer(RunList([tmp_path])) as one:
        threading.Thread(target=one.serve, daemon=True).start()
        assert ask_json(one, "/api/runs") == []
        run = tmp_path / "runs" / "late"
        run.mkdir()
        versions = []
        with MetricsRecord(run / "metrics.jsonl") as record:
            for step in (1, 2):
                record.append({"step": step, "loss": 3.0 / step})
                (found,) = ask_json(one, "/api/runs")
                assert found["status"]["step"] == step  # before anything but the end of its record is read
                versions.append(ask_json(one, f"/api/view?run={id_of(one, 'late')}")["version"])
                (found,) = ask_json(one, "/api/runs")
                assert (found["status"]["step"], found["version"]) == (step, versions[-1])
        assert versions[0] != versions[1]
        one.shutdown()


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.txt", "/static/../secret.txt", "/static/..%2f..%2fsecret.txt", "/%2e%2e/secret.txt", "//etc/passwd",
        "/static/page.py", "/api/view", "/api/view?run=../first", "/api/view?run=99", "/runs/first/metrics.jsonl",
        "/favicon.ico", "/api/heat?run=x",
    ],
)  # fmt: skip
def test_nothing_else_is_served(server: DashboardServer, path: str) -> None:
    status, _, body = ask(server, path)
    assert status == 404
    assert b"not for the browser" not in body


def test_a_question_that_makes_no_sense_is_refused(server: DashboardServer) -> None:
    for query in ("points=many", "from=a&to=b", "from=1e999&to=nan&points=-5"):
        assert ask(server, f"/api/view?run={id_of(server, 'first')}&{query}")[0] in (200, 400)
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE"):
        assert ask(server, "/api/runs", method)[0] == 501
    assert ask(server, "/", "HEAD")[2] == b""


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:{port}", 200), ("localhost:{port}", 200), ("[::1]:{port}", 200), ("LOCALHOST:{port}", 200),
        ("localhost:9", 200),  # the near end of a tunnel
        ("evil.example:{port}", 403), ("evil.example", 403), ("127.0.0.1.evil.example:{port}", 403), ("", 403),
        ("10.0.0.7:{port}", 403), ("localhost@evil.example:{port}", 403), ("localhost:port", 403),
    ],
)  # fmt: skip
def test_only_its_own_names_are_answered(server: DashboardServer, host: str, status: int) -> None:
    assert ask(server, "/api/runs", Host=host.format(port=server.port))[0] == status


def test_other_sites_cannot_read_along(server: DashboardServer) -> None:
    for kind in ("cross-site", "same-site"):
        assert ask(server, "/api/runs", Sec_Fetch_Site=kind)[0] == 403
    status, headers, _ = ask(server, "/api/runs", Origin="https://evil.example")
    assert status == 200
    assert not [name for name in headers if name.lower().startswith("access-control")]
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"


def test_long_answers_are_packed_where_the_browser_can(server: DashboardServer) -> None:
    _, headers, body = ask(server, f"/api/view?run={id_of(server, 'first')}", Accept_Encoding="gzip, br")
    assert headers["Content-Encoding"] == "gzip"
    assert json.loads(gzip.decompress(body))["panels"]


def test_on_an_address_that_others_reach_a_secret_is_asked_for(workspace: Path) -> None:
    with DashboardServer(RunList([workspace]), host="0.0.0.0") as one:
        threading.Thread(target=one.serve, daemon=True).start()
        assert f"?secret={one.secret}" in one.url
        assert len(one.secret) >= 20
        assert ask(one, "/")[0] == 401
        assert ask(one, "/?secret=wrong")[0] == 401
        assert ask(one, "/api/runs", Cookie="headwater_dashboard=wrong")[0] == 401
        status, headers, _ = ask(one, f"/?secret={one.secret}")
        assert status == 200
        cookie = headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert ask(one, "/api/runs", Cookie=cookie.split(";")[0])[0] == 200
        assert ask(one, "/api/runs", Cookie=cookie.split(";")[0], Host=f"evil.example:{one.port}")[0] == 403
        one.shutdown()


def test_a_busy_port_moves_to_the_next_free_one(workspace: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with DashboardServer(RunList([workspace]), port=port) as one:
            assert one.port != port


def test_a_place_without_runs_is_refused_with_the_mend(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    with pytest.raises(InputError, match="neither a run nor a folder of runs"):
        RunList([tmp_path])
    with pytest.raises(InputError, match="no such folder"):
        RunList([tmp_path / "nowhere"])


def test_a_folder_of_runs_by_any_name_shows_those_that_come_too(workspace: Path, tmp_path: Path) -> None:
    shutil.copytree(workspace / "runs" / "first", tmp_path / "first")
    shown = RunList([tmp_path])
    assert [reader.path.name for reader in shown.readers().values()] == ["first"]
    shutil.copytree(workspace / "runs" / "first", tmp_path / "second")
    assert {reader.path.name for reader in shown.readers().values()} == {"first", "second"}
    assert newest_run(tmp_path) in (tmp_path / "first", tmp_path / "second")


@pytest.mark.parametrize(("sign", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_the_verb_says_where_and_ends_when_told(workspace: Path, sign: signal.Signals, code: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "headwater.cli.main", "dashboard", str(workspace), "--port", "0", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        text = ""
        while not text.endswith("}\n"):
            line = process.stdout.readline()
            assert line, process.stderr.read() if process.stderr else ""
            text += line
        said = json.loads(text)
        assert set(said["runs"]) == {"first", "第二"}
        port = int(said["url"].rstrip("/").rpartition(":")[2])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", "/api/runs")
        assert connection.getresponse().status == 200
        process.send_signal(sign)
        assert process.wait(timeout=30) == code
    finally:
        process.kill()
        process.communicate()
