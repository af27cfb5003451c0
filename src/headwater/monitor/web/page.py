"""The page itself: one script and one style sheet, served by the dashboard or carried inside a report.

In: nothing, or the data of a report. Out: HTML. The script draws everything from plain values by DOM calls, so no text
of a run is ever read as markup; a Content-Security-Policy lets nothing but the page's own script run and nothing load.
"""

from __future__ import annotations

import base64
import hashlib
import html
from functools import cache
from importlib.resources import files
from typing import Any

import orjson

from headwater.core.jsonl import json_safe

SCRIPTS = (
    *("base.js", "scale.js", "drawing.js", "chart.js", "heat.js", "shares.js", "parts.js", "events.js"),
    *("page.js", "live.js", "start.js"),
)
"""In the order they need each other; one script to the browser."""


@cache
def _resource(name: str) -> str:
    return files("headwater.monitor.web").joinpath("static", name).read_text("utf-8")


@cache
def script() -> str:
    return '"use strict";\n(() => {\n' + "\n".join(_resource(name) for name in SCRIPTS) + "\n})();\n"


def style() -> str:
    return _resource("style.css")


def static_file(name: str) -> tuple[bytes, str] | None:
    """(bytes, content type) of what the dashboard's page loads; None for any other name."""
    if name == "app.js":
        return script().encode(), "text/javascript"
    if name == "style.css":
        return style().encode(), "text/css"
    return None


def dashboard_page() -> bytes:
    head = '<link rel="stylesheet" href="/static/style.css"><script src="/static/app.js" defer></script>'
    return _fill(_resource("page.html"), title="Headwater", head=head, data="").encode()


def report_page(data: dict[str, Any]) -> bytes:
    """One file that holds everything: `data` has `title`, `runs` (views) and what else `report.py` says."""
    looks, code = style(), script()
    policy = (
        f"default-src 'none'; style-src {_hash(looks)}; script-src {_hash(code)}; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )
    head = f'<meta http-equiv="Content-Security-Policy" content="{policy}"><style>{looks}</style>'
    # "<" never stands in the block, so no text of a run can end it.
    packed = orjson.dumps(json_safe(data), option=orjson.OPT_NON_STR_KEYS).decode().replace("<", "\\u003c")
    block = f'<script type="application/json" id="data">{packed}</script><script>{code}</script>'
    return _fill(_resource("page.html"), title=str(data["title"]), head=head, data=block).encode()


def _fill(page: str, *, title: str, head: str, data: str) -> str:
    before, _, rest = page.partition("{{title}}")
    middle, _, rest = rest.partition("{{head}}")
    body, _, end = rest.partition("{{data}}")
    return f"{before}{html.escape(title)}{middle}{head}{body}{data}{end}"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
