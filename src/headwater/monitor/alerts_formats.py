"""Alerts in the words and forms of Slack, Feishu and DingTalk. Pure: no clock, no network.

In: Alertmanager's webhook (version 4). Out: a `Notice`, and for each place the body, and the signature its robots ask
for.

    slack_body(notice_of(payload))          # {"text": "*Headwater: 1 alert* ..."}

Formats: api.slack.com/messaging/webhooks; open.feishu.cn, "custom bot"; open.dingtalk.com, "custom robot".
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from headwater.core.errors import InputError
from headwater.monitor.alerts_words import WORDS, Language

MOST_LINES = 20
LONGEST_LINE = 300
MARKS = {"critical": "🔴", "warning": "🟡", "resolved": "🟢"}
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]+")
"""Ends of lines of any kind, other controls, marks that turn the direction of writing, and halves of characters."""


@dataclass(frozen=True, slots=True)
class Notice:
    """What one message says: a title and a line an alert. `left_out` further alerts are only counted."""

    title: str
    lines: tuple[str, ...]
    left_out: int = 0
    language: Language = "en"

    @property
    def rest(self) -> tuple[str, ...]:
        return (WORDS[self.language].more.format(n=f"{self.left_out:,}"),) if self.left_out else ()


def notice_of(payload: Any, language: Language = "en") -> Notice:
    """The notice of a webhook of Alertmanager. InputError if it is none."""
    words = WORDS[language]
    alerts = payload.get("alerts") if isinstance(payload, dict) else None
    if not isinstance(alerts, list) or not all(isinstance(one, dict) for one in alerts) or not alerts:
        raise InputError("no webhook of Alertmanager: it has no alerts", where="request", mend="send its version 4")
    firing = [one for one in alerts if one.get("status") != "resolved"]
    over = [one for one in alerts if one.get("status") == "resolved"]
    firing.sort(key=lambda one: _part(one, "labels", "severity") != "critical")
    parts = [words.one_alert if len(firing) == 1 else words.alerts.format(n=len(firing))] if firing else []
    parts += [words.resolved_count.format(n=len(over))] if over else []
    told = [*firing, *over]
    truncated = payload.get("truncatedAlerts")
    left_out = max(0, len(told) - MOST_LINES) + (truncated if isinstance(truncated, int) else 0)
    lines = tuple(_line(one, language) for one in told[:MOST_LINES])
    return Notice(f"Headwater: {words.between.join(parts)}", lines, left_out, language)


def _line(alert: dict[str, Any], language: Language) -> str:
    words = WORDS[language]
    over = alert.get("status") == "resolved"
    severity = _part(alert, "labels", "severity")
    name = _part(alert, "labels", "alertname") or "alert"
    translated = _part(alert, "annotations", f"summary_{language}")
    summary = translated or _part(alert, "annotations", "summary") or _part(alert, "labels", "instance")
    mark = MARKS["resolved"] if over else MARKS.get(severity, MARKS["warning"])
    since = _text(alert.get("endsAt" if over else "startsAt"))[:16].replace("T", " ")
    when = (words.until if over else words.since).format(when=since) if since else ""
    text = f"{mark} {words.resolved if over else ''}{name}: {summary}"
    return (text if len(text) <= LONGEST_LINE else text[: LONGEST_LINE - 3] + "...") + when


def _part(alert: dict[str, Any], part: str, key: str) -> str:
    values = alert.get(part)
    return _text(values.get(key)) if isinstance(values, dict) else ""


def _text(value: Any) -> str:
    """A value in one line, without what would break out of it."""
    return _CONTROL.sub(" ", value).strip() if isinstance(value, str) else ""


def slack_body(notice: Notice) -> dict[str, Any]:
    """`&`, `<` and `>` are escaped, so that no label can mention people or make links."""
    lines = [line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;") for line in notice.lines]
    return {"text": "\n".join((f"*{notice.title}*", *lines, *notice.rest))}


def feishu_body(notice: Notice, *, secret: str | None, seconds: int) -> dict[str, Any]:
    """`seconds` since 1970; with a secret the body carries the signature. No label can mention people (`<at ...>`)."""
    text = "\n".join((notice.title, *notice.lines, *notice.rest)).replace("<", "＜")
    body: dict[str, Any] = {"msg_type": "text", "content": {"text": text}}
    return body if secret is None else {"timestamp": str(seconds), "sign": feishu_sign(secret, seconds), **body}


def feishu_sign(secret: str, seconds: int) -> str:
    """Base64 of HMAC-SHA256 with the key "{seconds}\\n{secret}" over nothing."""
    return base64.b64encode(hmac.digest(f"{seconds}\n{secret}".encode(), b"", hashlib.sha256)).decode()


def dingtalk_body(notice: Notice) -> dict[str, Any]:
    """Plain text: nothing in it can become a link, and nobody is mentioned."""
    text = "\n".join((notice.title, *notice.lines, *notice.rest))
    return {"msgtype": "text", "text": {"content": text}, "at": {"isAtAll": False}}


def dingtalk_url(url: str, *, secret: str | None, milliseconds: int) -> str:
    """The robot's address, with the time and the signature where there is a secret."""
    if secret is None:
        return url
    parts = urlsplit(url)
    query = [*parse_qsl(parts.query), ("timestamp", str(milliseconds)), ("sign", dingtalk_sign(secret, milliseconds))]
    return urlunsplit(parts._replace(query=urlencode(query)))


def dingtalk_sign(secret: str, milliseconds: int) -> str:
    """Base64 of HMAC-SHA256 with the secret as key over "{milliseconds}\\n{secret}"."""
    text = f"{milliseconds}\n{secret}".encode()
    return base64.b64encode(hmac.digest(secret.encode(), text, hashlib.sha256)).decode()
