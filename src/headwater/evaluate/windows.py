"""How a text longer than the model's context is cut so that each token is scored exactly once.

    rolling_windows(total=9, window=4, stride=2)
    # inputs 0:4 2:6 4:8, scoring 4, 2 and 2 targets: every window after the first keeps two tokens of context

With stride == window these are lm-evaluation-harness's rolling windows (each later window sees one earlier token
of context, and the last one, when short, sees more); a smaller stride gives every token at least
`window - stride + 1` tokens of context at the price of more computation.
"""

from __future__ import annotations

from dataclasses import dataclass

from headwater.core.errors import InputError


@dataclass(frozen=True, slots=True)
class Window:
    """Input tokens begin:end of a sequence; the targets are begin+1:end+1, of which the last `scored` count."""

    begin: int
    end: int
    scored: int


def rolling_windows(total: int, window: int, stride: int) -> list[Window]:
    """Windows over a sequence of `total` tokens whose first token is context only (it is nobody's target).

    The targets scored are 1..total-1, each once, in order. `window` is the longest input in tokens, `stride` the
    most targets a window after the first scores. Raises InputError unless 1 <= stride <= window.
    """
    if not 1 <= stride <= window:
        raise InputError(
            f"stride {stride} does not fit a window of {window} tokens",
            mend="use a stride between 1 and the window",
        )
    windows: list[Window] = []
    done = 0
    while done < total - 1:
        scored = min(total - 1 - done, stride if windows else window)
        done += scored
        windows.append(Window(max(0, done - window), done, scored))
    return windows
