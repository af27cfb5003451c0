"""Prompts and answers that a filter of harmful text flags are not served.

In: a filter (`headwater.evaluate.harm`), what it looks at. Out: an error of code `content_filter` for a prompt; an
empty choice with that finish reason for an answer. An answer that is filtered is not streamed: it has to be whole
first.

    guard = Guard.of(ServeConfig(filter="prompts"))
    guard.check_prompts(["..."]); guard.check_reply(reply.whole())
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.serve.config import ServeConfig
from headwater.serve.errors import bad_request

if TYPE_CHECKING:
    from headwater.evaluate.harm.filter import Filter

FILTERED = "content_filter"


class Guard:
    """`outputs`: answers are looked at too."""

    def __init__(self, filter_: Filter, *, outputs: bool) -> None:
        self._filter, self.outputs = filter_, outputs

    @classmethod
    def of(cls, config: ServeConfig) -> Guard | None:
        """As the section says; None if it asks for no filter. Errors as the classifier's `load`."""
        if config.filter == "off":
            return None
        from headwater.evaluate.harm.filter import open_filter  # numba, which a server without a filter does not need

        classifier = None if config.filter_classifier is None else Path(config.filter_classifier)
        return cls(open_filter(classifier, threshold=config.filter_threshold), outputs=config.filter == "both")

    def check_stream(self, stream: bool) -> None:
        """Raises ApiError if an answer that has to be looked at is asked for in pieces."""
        if stream and self.outputs:
            raise bad_request("This server filters answers and does not stream them.", param="stream")

    def check_prompts(self, prompts: Sequence[str], param: str) -> None:
        """Raises ApiError for the first prompt that is flagged; the message names categories, not the text."""
        for text in prompts:
            verdict = self._filter.check(text)
            if verdict.flagged:
                named = ", ".join(verdict.categories)
                raise bad_request(f"The prompt was filtered ({named}).", param=param, code=FILTERED)

    def check_reply(self, reply: dict[str, Any]) -> dict[str, Any]:
        """The reply, with flagged choices emptied."""
        if self.outputs:
            for choice in reply["choices"]:
                place, key = (choice["message"], "content") if "message" in choice else (choice, "text")
                if self._filter.check(place[key] or "").flagged:
                    place[key], choice["finish_reason"] = "", FILTERED
                    if choice.get("logprobs") is not None:
                        choice["logprobs"] = None
        return reply
