"""The webhook bridge against a real server on this machine, which checks signatures as the robots do."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.cli.main import run_command
from headwater.core.errors import InputError, UserError
from headwater.monitor.alerts import Bridge, destinations
from headwater.monitor.alerts_formats import (
    MOST_LINES,
    dingtalk_sign,
    dingtalk_url,
    feishu_sign,
    notice_of,
    slack_body,
)
from tests.monitor.test_prometheus import free_port

SECRET = "SEC-feishu-7f3a"
DING = "SEC-ding-91bc"


@dataclass
class Robots:
    """Slack, Feishu and DingTalk on one port: what they got, and how they answer."""

    port: int = 0
    got: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {"slack": [], "feishu": [], "dingtalk": []})
    down: set[str] = field(default_factory=set)

    def environment(self) -> dict[str, str]:
        root = f"http://127.0.0.1:{self.port}"
        return {
            "HEADWATER_SLACK_WEBHOOK": f"{root}/slack/T0/B0/hidden-key",
            "HEADWATER_FEISHU_WEBHOOK": f"{root}/feishu/hidden-key",
            "HEADWATER_FEISHU_SECRET": SECRET,
            "HEADWATER_DINGTALK_WEBHOOK": f"{root}/dingtalk?access_token=hidden-key",
            "HEADWATER_DINGTALK_SECRET": DING,
        }


def signed(key: bytes, text: bytes) -> str:
    return base64.b64encode(hmac.new(key, text, hashlib.sha256).digest()).decode()


@pytest.fixture
def robots() -> Iterator[Robots]:
    state = Robots()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            parts = urlsplit(self.path)
            place = parts.path.split("/")[1]
            code, answer = 200, '{"code": 0, "errcode": 0}'
            if place in state.down:
                code = 302 if place == "slack" else 500
            elif place == "slack":
                answer = "ok"
            elif place == "feishu":
                if body.get("sign") != signed(f"{body.get('timestamp')}\n{SECRET}".encode(), b""):
                    answer = '{"code": 19021, "msg": "sign match fail"}'
            else:
                query = parse_qs(parts.query)
                stamp = query["timestamp"][0]
                if query["sign"][0] != signed(DING.encode(), f"{stamp}\n{DING}".encode()):
                    answer = '{"errcode": 310000, "errmsg": "sign not match"}'
            if code == 200:
                state.got[place].append(body)
            self.send_response(code)
            if code == 302:
                self.send_header("Location", f"http://127.0.0.1:{state.port}/slack/elsewhere")
            self.end_headers()
            self.wfile.write(answer.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.port = server.server_port
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield state
    server.shutdown()
    server.server_close()
    thread.join()


def alert(name: str, severity: str = "critical", status: str = "firing", **annotations: str) -> dict[str, Any]:
    summary = {"summary": f"run r1: {name} happened", **annotations}
    labels = {"alertname": name, "severity": severity, "run": "r1"}
    times = {"startsAt": "2026-11-30T14:00:00Z", "endsAt": "2026-11-30T15:00:00Z"}
    return {"status": status, "labels": labels, "annotations": summary, **times}


def webhook(*alerts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"version": "4", "status": "firing", "alerts": list(alerts), **more}


def post(url: str, body: bytes, **headers: str) -> tuple[int, str]:
    request = urllib.request.Request(url, body, {"Content-Type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.fixture
def bridge(robots: Robots) -> Iterator[tuple[Bridge, list[str]]]:
    said: list[str] = []
    made = Bridge(destinations(robots.environment()), port=free_port(), say=said.append)
    yield made, said
    made.close()


def test_an_alert_reaches_all_three_with_their_signatures(robots: Robots, bridge: tuple[Bridge, list[str]]) -> None:
    sent = webhook(alert("SlowData", "warning"), alert("LossSpike", 指标="x"), alert("Plateau", status="resolved"))
    code, words = post(bridge[0].url, json.dumps(sent).encode())
    assert (code, words) == (200, "sent\n")
    lines = [
        "Headwater: 2 alerts, 1 resolved",
        "🔴 LossSpike: run r1: LossSpike happened (since 2026-11-30 14:00 UTC)",
        "🟡 SlowData: run r1: SlowData happened (since 2026-11-30 14:00 UTC)",
        "🟢 resolved Plateau: run r1: Plateau happened (until 2026-11-30 15:00 UTC)",
    ]
    assert robots.got["slack"] == [{"text": "\n".join([f"*{lines[0]}*", *lines[1:]])}]
    assert robots.got["feishu"][0]["content"]["text"] == "\n".join(lines)
    assert robots.got["dingtalk"][0]["text"]["content"] == "\n".join(lines)
    assert [len(got) for got in robots.got.values()] == [1, 1, 1]


def test_messages_are_in_chinese_where_that_is_asked_for(robots: Robots) -> None:
    made = Bridge(destinations(robots.environment()), port=free_port(), language="zh")
    sent = webhook(alert("LossSpike", summary_zh="训练 r1：损失突然远高于原有水平"), alert("Own", status="resolved"))
    try:
        assert post(made.url, json.dumps({**sent, "truncatedAlerts": 3}).encode())[0] == 200
    finally:
        made.close()
    assert robots.got["feishu"][0]["content"]["text"].splitlines() == [
        "Headwater: 1 条告警，1 条已恢复",
        "🔴 LossSpike: 训练 r1：损失突然远高于原有水平（自 2026-11-30 14:00 UTC）",
        "🟢 已恢复 Own: run r1: Own happened（至 2026-11-30 15:00 UTC）",
        "……另有 3 条",
    ]


def test_a_place_that_is_down_is_tried_again_and_the_others_get_it_once(
    robots: Robots, bridge: tuple[Bridge, list[str]]
) -> None:
    robots.down = {"feishu", "slack"}
    body = json.dumps(webhook(alert("LossSpike"))).encode()
    code, words = post(bridge[0].url, body)
    assert (code, words) == (502, "slack answered with 302; feishu answered with 500\n")
    robots.down = set()
    assert post(bridge[0].url, body)[0] == 200
    assert [len(got) for got in robots.got.values()] == [1, 1, 1]
    assert post(bridge[0].url, body)[0] == 200, "the same alert, hours later"
    assert [len(got) for got in robots.got.values()] == [2, 2, 2]
    assert "hidden-key" not in "".join(bridge[1])


def test_a_wrong_secret_is_told_and_nothing_secret_is(robots: Robots) -> None:
    environment = {**robots.environment(), "HEADWATER_FEISHU_SECRET": "wrong-1", "HEADWATER_DINGTALK_SECRET": "wrong-2"}
    places = destinations(environment)
    said: list[str] = []
    made = Bridge(places, port=free_port(), say=said.append)
    try:
        code, words = post(made.url, json.dumps(webhook(alert("LossSpike"))).encode())
    finally:
        made.close()
    assert code == 502
    assert "feishu refused the message: code 19021 sign match fail" in words
    assert "dingtalk refused the message: code 310000 sign not match" in words
    shown = "".join([*said, words, repr(places)])
    assert not [secret for secret in ("hidden-key", "wrong-1", "wrong-2") if secret in shown]


def test_what_is_no_webhook_is_refused_and_a_web_page_cannot_send(bridge: tuple[Bridge, list[str]]) -> None:
    url = bridge[0].url
    good = json.dumps(webhook(alert("LossSpike"))).encode()
    for body in (b"", b"{", b"[]", b'{"alerts": []}', b'{"alerts": 3}', b'{"alerts": [1]}', b"[" * 100_000):
        assert post(url, body)[0] == 400, body[:20]
    assert post(url, good, **{"Content-Type": "text/plain"})[0] == 415
    assert post(url, b" " * (2 << 20))[0] == 413
    with urllib.request.urlopen(f"{url}healthz", timeout=5) as answer:
        assert answer.read() == b"ok\n"
    assert bridge[1] == []


def test_a_token_is_asked_for_where_one_is_set(robots: Robots) -> None:
    made = Bridge(destinations(robots.environment()), port=free_port(), token="open-sesame")
    body = json.dumps(webhook(alert("LossSpike"))).encode()
    try:
        assert post(made.url, body)[0] == 401
        assert post(made.url, body, Authorization="Bearer other")[0] == 401
        assert post(made.url, body, Authorization="Bearer open-sesame")[0] == 200
    finally:
        made.close()


def test_an_answer_that_is_not_http_is_a_failure_in_words_and_the_others_are_still_sent_to(robots: Robots) -> None:
    with socket.create_server(("127.0.0.1", 0)) as odd:

        def answer() -> None:
            caller, _ = odd.accept()
            with caller:
                caller.recv(1 << 16)
                caller.sendall(b"SSH-2.0-hello\r\n")

        threading.Thread(target=answer, daemon=True).start()
        environment = robots.environment() | {
            "HEADWATER_SLACK_WEBHOOK": f"http://127.0.0.1:{odd.getsockname()[1]}/hidden-key"
        }
        made = Bridge(destinations(environment), port=free_port())
        try:
            code, words = post(made.url, json.dumps(webhook(alert("LossSpike"))).encode())
        finally:
            made.close()
    assert (code, words) == (502, "slack cannot be reached: BadStatusLine\n")
    assert [len(robots.got[place]) for place in ("feishu", "dingtalk")] == [1, 1]


@pytest.mark.parametrize("url", ["hooks.slack.com/hidden", "ftp://x/hidden", "http://example.com/hidden", "https://:x",
                                 "https://hooks.slack.com/services/T0 hidden", "https://x/\u200bhidden"])  # fmt: skip
def test_an_address_that_is_none_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(UserError) as caught:
        destinations({"HEADWATER_SLACK_WEBHOOK": url})
    assert caught.value.where == "HEADWATER_SLACK_WEBHOOK"
    assert "hidden" not in str(caught.value)
    with pytest.raises(UserError, match="no place"):
        destinations({"HEADWATER_FEISHU_SECRET": "alone"})


def test_signatures_are_those_of_the_published_rules() -> None:
    assert feishu_sign("demo", 1599360473) == signed(b"1599360473\ndemo", b"")
    assert dingtalk_sign("this is secret", 1577262236757) == signed(b"this is secret", b"1577262236757\nthis is secret")
    url = dingtalk_url("https://oapi.dingtalk.com/robot/send?access_token=a%2Bb", secret="s", milliseconds=5)
    assert parse_qs(urlsplit(url).query)["access_token"] == ["a+b"]
    assert parse_qs(urlsplit(url).query)["sign"] == [dingtalk_sign("s", 5)]


ANY = st.none() | st.integers() | st.text()
PARTS = ("summary", "alertname", "severity", "instance")


@given(
    ANY
    | st.dictionaries(
        st.sampled_from(["labels", "annotations", "status", "startsAt"]),
        ANY | st.dictionaries(st.sampled_from(PARTS), ANY),
    )
)
def test_alerts_of_any_kind_become_a_line_each_that_nothing_breaks_out_of(value: Any) -> None:
    alerts = [value] * 30
    if not isinstance(value, dict):
        with pytest.raises(InputError):
            notice_of(webhook(*alerts))
        return
    notice = notice_of(webhook(*alerts, truncatedAlerts=5))
    assert len(notice.lines) == MOST_LINES
    assert notice.left_out == 15
    text = slack_body(notice)["text"]
    assert "<" not in text
    assert len(text.splitlines()) == MOST_LINES + 2
    text.encode()


def test_the_verb_sends_a_test_message_from_the_environment_alone(
    robots: Robots, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["alerts"]) == 2
    assert "HEADWATER_SLACK_WEBHOOK" in capsys.readouterr().err
    for name, value in robots.environment().items():
        monkeypatch.setenv(name, value)
    assert run_command(["alerts", "--test", "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == {"slack": "sent", "feishu": "sent", "dingtalk": "sent"}
    assert run_command(["alerts", "--test", "--language", "fr"]) == 2
    assert "en or zh" in capsys.readouterr().err
    robots.down = {"dingtalk"}
    assert run_command(["alerts", "--test"]) == 1
    said = capsys.readouterr()
    assert "dingtalk  dingtalk answered with 500" in said.out
    assert not [secret for secret in ("hidden-key", SECRET, DING) if secret in said.out + said.err]
