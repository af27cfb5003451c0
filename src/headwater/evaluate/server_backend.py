"""A model behind an OpenAI-style server, as tasks see it: likelihoods by `echo` and `logprobs` of /v1/completions,
texts by /v1/completions or, with `chat`, /v1/chat/completions. `headwater serve`, vLLM and others speak this.

    backend = ServerBackend.connect("http://127.0.0.1:8080")
    backend.likelihoods([("The sky is", " blue")])

The server cuts texts into tokens, so the border between context and continuation is found by the tokens' place in the
text: a token that reaches beyond the context belongs to the continuation. A server that scores no prompts (chat only)
answers generation tasks alone.
"""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from headwater.core.errors import InputError, UserError
from headwater.engine import SamplingParams
from headwater.evaluate.backends import Progress, TextLikelihood, Written
from headwater.evaluate.likelihood import Likelihood

RETRIES = 6
_BUSY = (408, 425, 429, 500, 502, 503, 504)
T = TypeVar("T")
R = TypeVar("R")


class ServerBackend:
    """Talks to a server. `concurrent` requests are open at a time; the server batches them. The key is that of the
    environment variable OPENAI_API_KEY."""

    def __init__(
        self, url: str, model: str, *, chat: bool = False, concurrent: int = 8, timeout: float = 600.0
    ) -> None:
        self.url, self.served, self.chat = url.rstrip("/"), model, chat
        self.concurrent, self.timeout = concurrent, timeout
        self._echo_tokens = 0  # what max_tokens a request for prompt scores has; some servers want at least 1
        self.name = model
        self.facts: dict[str, Any] = {
            "server": "chat completions" if chat else "completions",
            "border": "a token that reaches beyond the context belongs to the continuation",
            "first_token": "of a text: not scored, unless the server puts bos before it",
        }
        self.model: dict[str, Any] = {"url": self.url, "served_model": model}

    @classmethod
    def connect(
        cls, url: str, model: str | None = None, *, chat: bool = False, concurrent: int = 8, timeout: float = 600.0
    ) -> ServerBackend:
        """Ask the server what it serves. UserError if it cannot be reached, or serves several models and none is
        named."""
        base = url.rstrip("/").removesuffix("/v1")
        made = cls(base, model or "", chat=chat, concurrent=concurrent, timeout=timeout)
        listed = made._get("/v1/models").get("data", [])
        names = [entry["id"] for entry in listed if isinstance(entry, dict) and "id" in entry]
        if model is None and len(names) != 1:
            raise UserError(
                f"serves {', '.join(names) or 'no model'}", where=base, mend="name one of them by --model-name"
            )
        if model is not None and names and model not in names:
            raise UserError(f"serves no model {model!r}", where=base, mend=f"use {', '.join(names)}")
        return cls(base, model or names[0], chat=chat, concurrent=concurrent, timeout=timeout)

    def likelihoods(self, pairs: Sequence[tuple[str, str]], on_progress: Progress | None = None) -> list[Likelihood]:
        """Errors as `Backend`; InputError for what the server refuses (too long), or if it scores no prompts."""
        return self._map(self._likelihood, pairs, on_progress)

    def _likelihood(self, pair: tuple[str, str]) -> Likelihood:
        context, continuation = pair
        spaces = len(context) - len(context.rstrip())
        if spaces:
            context, continuation = context[:-spaces], context[-spaces:] + continuation
        text = context + continuation
        nats, tokens, greedy = 0.0, 0, True
        for begin, end, logprob, best in self._scores(text):
            # A character spelled in several tokens is counted at the last of them; the others have no width.
            inside = end > len(context) or begin == end == len(context)
            if not inside or begin >= len(text) or (logprob is None and begin == end):
                continue
            if logprob is None:
                raise InputError("the server does not score the first token of a text, and the context is empty")
            nats, tokens = nats + logprob, tokens + 1
            greedy = greedy and logprob >= best
        if not tokens:
            raise InputError(f"the continuation {continuation!r} has no tokens of its own")
        return Likelihood(nats, tokens, greedy)

    def texts(
        self,
        texts: Sequence[str],
        *,
        window: int | None = None,
        stride: int | None = None,
        on_progress: Progress | None = None,
    ) -> list[TextLikelihood]:
        """Texts that fit the server's context in one pass. InputError for others, and where windows are asked for."""
        if window is not None or stride is not None:
            raise InputError("a server cannot cut texts into windows", mend="score a model's folder")
        return self._map(self._text, texts, on_progress)

    def _text(self, text: str) -> TextLikelihood:
        scored = [logprob for begin, _, logprob, _ in self._scores(text) if begin < len(text) and logprob is not None]
        return TextLikelihood(sum(scored), len(scored))

    def _scores(self, text: str) -> list[tuple[int, int, float | None, float]]:
        """(begin, end, ln p, ln p of the likeliest) of each token of the text, places in characters."""
        if self.chat:
            raise InputError("a chat endpoint scores no given text", where=self.url, mend="leave out --chat")
        body = {"prompt": text, "max_tokens": self._echo_tokens, "echo": True, "logprobs": 1, "temperature": 0}
        try:
            choice = self._post("/v1/completions", body)["choices"][0]
        except InputError as error:
            if self._echo_tokens or "max_tokens" not in error.what:
                raise
            self._echo_tokens = 1
            return self._scores(text)
        found = choice.get("logprobs") or {}
        values, offsets, tops = (found.get(key) for key in ("token_logprobs", "text_offset", "top_logprobs"))
        if not values or not offsets:
            raise InputError(
                "the server gives no log-probabilities of a prompt", where=self.url, mend="serve with echo and logprobs"
            )
        names = found["tokens"]
        # Some servers count a bos they have put before the text, others do not.
        shift = offsets[1] if len(offsets) > 1 and values[0] is None and not text.startswith(names[0]) else 0
        places = [max(0, offset - shift) for offset in offsets]
        ends = [*places[1:], max(len(choice["text"]), places[-1])]
        best = [max(top.values(), default=0.0) if top else float("-inf") for top in tops or [None] * len(values)]
        return list(zip(places, ends, values, best, strict=True))

    def complete(
        self, prompts: Sequence[str], params: SamplingParams, on_progress: Progress | None = None
    ) -> list[Written]:
        """InputError for a prompt the server refuses: it is never cut here. UserError for parameters that OpenAI's
        interface does not have."""
        body = {name: getattr(params, name) for name in ("max_tokens", "temperature", "top_p", "n", "seed")}
        if params != SamplingParams(**body, stop=params.stop):
            raise UserError(
                f"{params} has more than a server of OpenAI's interface takes",
                where=self.url,
                mend="use max_tokens, temperature, top_p, n, seed and stop",
            )
        stop = params.stop
        # OpenAI takes four stops; the rest is cut off here.
        body |= {"stop": list(stop[:4])} if stop else {}

        def one(prompt: str) -> Written:
            if self.chat:
                message = {"messages": [{"role": "user", "content": prompt}], **body}
                choices = self._post("/v1/chat/completions", message)["choices"]
                texts = [choice["message"].get("content") or "" for choice in choices]
            else:
                choices = self._post("/v1/completions", {"prompt": prompt, **body})["choices"]
                texts = [choice["text"] for choice in choices]
            reasons = [str(choice.get("finish_reason")) for choice in choices]
            return Written((_cut(text, stop) for text in texts), finish=reasons)

        return self._map(one, prompts, on_progress)

    def _map(self, ask: Callable[[T], R], wanted: Sequence[T], on_progress: Progress | None) -> list[R]:
        found = []
        with ThreadPoolExecutor(self.concurrent) as pool:
            for answer in pool.map(ask, wanted):
                found.append(answer)
                if on_progress is not None:
                    on_progress(1)
        return found

    def _get(self, path: str) -> dict[str, Any]:
        return self._ask(urllib.request.Request(self.url + path, headers=self._headers()))

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        data = json.dumps({"model": self.served, **body}).encode()
        return self._ask(urllib.request.Request(self.url + path, data=data, headers=self._headers()))

    def _headers(self) -> dict[str, str]:
        key = os.environ.get("OPENAI_API_KEY")
        return {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})

    def _ask(self, request: urllib.request.Request) -> dict[str, Any]:
        for attempt in range(RETRIES):
            try:
                with urllib.request.urlopen(request, timeout=self.timeout) as answer:
                    loaded = json.loads(answer.read())
                    return loaded if isinstance(loaded, dict) else {}
            except urllib.error.HTTPError as error:
                said = _message(error)
                if error.code in (400, 413, 422):
                    raise InputError(f"the server refuses: {said}", where=self.url) from error
                if error.code not in _BUSY or attempt == RETRIES - 1:
                    raise UserError(f"the server answers {error.code}: {said}", where=request.full_url) from error
            except (urllib.error.URLError, ConnectionError, TimeoutError) as error:
                if attempt == RETRIES - 1 or request.data is None:
                    reason = getattr(error, "reason", error)
                    raise UserError(
                        f"cannot be reached: {reason}", where=self.url, mend="start the server, or check the address"
                    ) from error
            except json.JSONDecodeError as error:
                raise UserError("does not answer with JSON", where=request.full_url) from error
            time.sleep(0.5 * 2**attempt)
        raise AssertionError("the last attempt returns or raises")


def _message(error: urllib.error.HTTPError) -> str:
    try:
        found = json.loads(error.read()).get("error", {})
        return str(found.get("message", found) if isinstance(found, dict) else found)
    except (ValueError, AttributeError, OSError):
        return error.reason


def _cut(text: str, stops: Sequence[str]) -> str:
    places = [place for stop in stops if (place := text.find(stop)) >= 0]
    return text[: min(places)] if places else text
