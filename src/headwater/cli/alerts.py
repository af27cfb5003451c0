"""`headwater alerts`: send Alertmanager's alerts to Slack, Feishu and DingTalk."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli.common import Debug, Json, Quiet, Stopped, finish, make_reporter, print_json, refuse, until_stopped

if TYPE_CHECKING:
    from headwater.monitor.alerts import Destination
    from headwater.monitor.alerts_words import Language


def command(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port for Alertmanager's webhook.")] = 9095,
    language: Annotated[str, typer.Option(help="Language of the messages: en or zh.")] = "en",
    test: Annotated[bool, typer.Option("--test", help="Send a message to every place now, and end.")] = False,
    json_: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> Stopped | int | None:
    """Take webhooks of Alertmanager and send them on until Ctrl-C.

    Addresses and secrets come from the environment alone: HEADWATER_SLACK_WEBHOOK, HEADWATER_FEISHU_WEBHOOK,
    HEADWATER_DINGTALK_WEBHOOK; HEADWATER_FEISHU_SECRET and HEADWATER_DINGTALK_SECRET for robots that ask for a
    signature; HEADWATER_ALERTS_TOKEN, which callers must then send.
    """
    from headwater.monitor.alerts import TOKEN, Bridge, DeliveryError, destinations, is_loopback
    from headwater.monitor.alerts_formats import Notice
    from headwater.monitor.alerts_words import WORDS

    chosen: Language = "zh" if language == "zh" else "en"
    refuse("--language", chosen != language, f"is en or zh, not {language!r}")
    reporter = make_reporter(quiet=quiet)
    places = destinations(os.environ)
    if test:
        said: dict[str, str] = {}
        for place in places:
            try:
                place.send(Notice("Headwater", (WORDS[chosen].test,)))
                said[place.place] = "sent"
            except DeliveryError as error:
                said[place.place] = error.what
        finish(said, "\n".join(f"{name:<9} {words}" for name, words in said.items()), as_json=json_)
        return 0 if set(said.values()) == {"sent"} else 1
    token = os.environ.get(TOKEN, "").strip() or None
    if token is None and not is_loopback(host):
        reporter.warn(f"whoever reaches {host}:{port} can send messages to {_listed(places)}; {TOKEN} asks for a token")
    bridge = Bridge(places, host, port, token=token, language=chosen, say=reporter.info)
    try:
        if json_:
            print_json({"url": bridge.url, "places": [place.place for place in places]})
        else:
            sys.stdout.write(f"alerts sent to {bridge.url} go to {_listed(places)}\n")
            sys.stdout.flush()
        return until_stopped()
    finally:
        bridge.close()


def _listed(places: list[Destination]) -> str:
    return ", ".join(place.place for place in places)
