"""The recipe's `serve` section: where the OpenAI-style server listens, who may use it, and its limits.

Everything here is operational: it changes no artifact. Imports no torch and no web framework.
"""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import Literal

from headwater.core.config import Section, field
from headwater.core.errors import InputError, UserError

API_KEY_VARIABLE = "HEADWATER_API_KEY"


class ServeConfig(Section):
    """The embedded server. It has no TLS: beyond one machine put a reverse proxy in front."""

    host: str = field("127.0.0.1", kind="operational")
    """Address to listen on. One that other machines reach needs an API key or `allow_unauthenticated`."""

    port: int = field(8080, kind="operational", ge=0, le=65535)
    """TCP port; 0 takes a free one and prints it."""

    model_name: str | None = field(None, kind="operational", min_length=1)
    """Name clients ask for; null takes the name of the model's folder."""

    api_key_env: str = field(API_KEY_VARIABLE, kind="operational", min_length=1)
    """Environment variable that holds the API key. The key itself never stands in a recipe and is never logged."""

    api_key_file: str | None = field(None, kind="operational")
    """File whose first line is the API key; wins over the environment variable."""

    allow_unauthenticated: bool = field(False, kind="operational")
    """Listen on a non-loopback address without an API key, knowing that everyone who reaches it can use it."""

    max_tokens: int = field(4096, kind="operational", unit="tokens", ge=1)
    """Most tokens one choice may generate; a request that asks for more is refused."""

    max_prompt_tokens: int | None = field(None, kind="operational", unit="tokens", ge=1)
    """Longest prompt; null leaves only the model's context as the limit."""

    max_concurrent: int = field(16, kind="operational", unit="sequences", ge=1)
    """Sequences generated together in one batch; a request's prompts times n may not be more."""

    max_waiting: int = field(64, kind="operational", unit="requests", ge=0)
    """Requests that may wait for their turn; one more is answered 429."""

    max_body_bytes: int = field(1 << 20, kind="operational", unit="bytes", ge=1)
    """Largest request body; a larger one is answered 413."""

    filter: Literal["off", "prompts", "both"] = field("off", kind="operational")
    """Harmful text, found by a lexicon and `filter_classifier`: `prompts` refuses prompts, `both` also empties answers,
    which are then not streamed."""

    filter_classifier: str | None = field(None, kind="operational")
    """A classifier fitted by `headwater eval filter --fit`; null: the lexicon alone."""

    filter_threshold: float = field(0.5, kind="operational", gt=0, lt=1)
    """Probability from which the classifier flags."""

    timeout: float = field(600.0, kind="operational", unit="seconds", gt=0)
    """Longest a request may take, waiting included; then it is stopped and answered 503."""

    shutdown_grace: float = field(10.0, kind="operational", unit="seconds", ge=0)
    """How long SIGTERM waits for running requests before it stops them."""


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`. Names other than localhost are taken not to be."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_api_key(config: ServeConfig) -> str | None:
    """The API key from the file or the environment, or None.

    Raises InputError for a key file that cannot be read or is empty, UserError if the address is open to other
    machines and nothing protects it.
    """
    key: str | None = None
    if config.api_key_file is not None:
        path = Path(config.api_key_file).expanduser()
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot read the API key file: {error}", where=str(path)) from error
        key = lines[0].strip() if lines else ""
        if not key:
            raise InputError("the API key file's first line is empty", where=str(path), mend="write the key there")
    elif config.api_key_env in os.environ:
        key = os.environ[config.api_key_env].strip()
        if not key:
            raise InputError(
                f"the environment variable {config.api_key_env} is set but empty",
                mend="set it to the key, or unset it to serve without one",
            )
    if key is None and not is_loopback(config.host) and not config.allow_unauthenticated:
        raise UserError(
            f"{config.host} can be reached from other machines and no API key is set",
            where="serve.host",
            mend=f"set {config.api_key_env} or serve.api_key_file, listen on 127.0.0.1, "
            "or say serve.allow_unauthenticated=true",
        )
    return key
