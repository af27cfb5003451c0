"""What a task is: where its rows come from, how a row becomes a question, and how the answer is scored.

A task is one YAML file, ours (`builtin/`) or a person's own, in the terms of this section; templates are Jinja, as in
lm-evaluation-harness, and see the fields of a row.

    name: capitals
    kind: multiple_choice
    files: [capitals.jsonl]           # {"country": "France", "options": ["Paris", "Lyon"], "answer": 0}
    context: "The capital of {{ country }} is"
    choices: "{{ options }}"
    gold: "{{ answer }}"
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import model_validator

from headwater.core.config import Section, field

Kind = Literal["multiple_choice", "cloze", "generate", "code", "perplexity"]


class HubSource(Section):
    """A data set on the Hugging Face hub."""

    path: str = field(...)
    """Repository of the data set."""

    name: str | None = field(None)
    """Configuration of the data set."""

    split: str = field("test")
    """Split that is scored."""


class FewShot(Section):
    """Solved examples before the question."""

    count: int = field(0, ge=0, unit="examples")
    """How many."""

    files: tuple[str, ...] = field(())
    """Files they come from, looked for as `TaskSpec.files`."""

    hub: HubSource | None = field(None)
    """Where they come from without files."""

    rows: tuple[dict[str, Any], ...] = field(())
    """Or the examples themselves, as rows the reader has read."""

    order: Literal["first", "seeded"] = field("first")
    """`first`: the first rows of the file (of the question's group, where there are groups), the same every time;
    `seeded`: drawn for each question by its number."""

    separator: str = field("\n\n")
    """Between examples, and between the last one and the question."""


class Sampling(Section):
    """How answers are drawn. The default is one greedy answer."""

    samples: int = field(1, ge=1, unit="answers")
    """Answers drawn for a question."""

    temperature: float = field(0.0, ge=0.0)
    """0 takes the likeliest token each time."""

    top_p: float = field(1.0, gt=0.0, le=1.0)
    """Nucleus that is drawn from."""

    seed: int = field(0)
    """Seed of the draws."""


class CodeTemplates(Section):
    """`code`: what runs in the sandbox. Templates see the row's fields and `completion`."""

    program: str = field("{{ prompt }}{{ completion }}")
    """The program."""

    tests: str = field("{{ test }}")
    """Its tests."""

    entry_point: str = field("{{ entry_point }}")
    """The function that is tested."""

    check: str = field("check")
    """Function of the tests that takes the entry point; empty: loading the tests is the test."""

    pass_at: tuple[int, ...] = field((1,))
    """Each k of pass@k; needs that many samples."""


class TaskSpec(Section):
    """One task."""

    name: str = field(..., pattern=r"^[a-z0-9_][a-z0-9_.-]*$")
    """What the task is called in results."""

    version: int = field(1, ge=1)
    """Raised whenever a change makes scores incomparable."""

    title: str = field("")
    """One line for people."""

    language: str = field("en")
    """Language of the questions."""

    suites: tuple[str, ...] = field(())
    """Suites it belongs to: base, code, safety ..."""

    kind: Kind = field(...)
    """`multiple_choice`: the likeliest of given continuations; `cloze`: the likelihood of the one right continuation;
    `generate`: the model writes, and `scorer` reads; `code`: what it writes is run against tests in a sandbox;
    `perplexity`: the likelihood of whole texts, `context` being the text."""

    rows: tuple[dict[str, Any], ...] = field(())
    """The rows themselves, where there are few, instead of files."""

    files: tuple[str, ...] = field(())
    """Names the data has in a folder of data, with `*`; the first that is there is read. JSON Lines, JSON, CSV,
    TSV, plain text (one row with the field `text`), any of them with .gz."""

    hub: HubSource | None = field(None)
    """Where the data is, when there is no folder of data."""

    reader: str = field("plain")
    """How a row of the file becomes the fields templates see (`readers.py`): `plain` takes it as it is."""

    group: str | None = field(None)
    """Field that divides the task (a subject); scored each and as a mean of questions."""

    description: str = field("")
    """Template of what stands before everything."""

    context: str = field(...)
    """Template of the question."""

    choices: str | tuple[str, ...] = field("")
    """Template that gives a list, or one template a choice."""

    gold: str = field("")
    """Template of the right answer: the number of a choice from 0, its letter, its text; for `cloze` the continuation;
    for `generate` what the scorer compares with."""

    delimiter: str = field(" ")
    """Between the question and a continuation."""

    fewshot: FewShot = field(default_factory=FewShot)
    """Solved examples."""

    scorer: str = field("likelihood")
    """How answers are scored (`scorers.py`)."""

    stop: tuple[str, ...] = field(())
    """`generate`, `code`: strings that end an answer."""

    max_tokens: int = field(256, ge=1, unit="tokens")
    """`generate`, `code`: longest answer."""

    sampling: Sampling = field(default_factory=Sampling)
    """`generate`, `code`: how answers are drawn."""

    code: CodeTemplates = field(default_factory=CodeTemplates)
    """`code`: what is run."""

    counted: str = field("")
    """`perplexity`: template of the text whose words and bytes are counted (default: the scored text itself)."""

    window: int | None = field(None, ge=2, unit="tokens")
    """`perplexity`: longest input of one forward pass; null takes the model's context."""

    stride: int | None = field(None, ge=1, unit="tokens")
    """`perplexity`: new tokens a window after the first scores; null equals the window."""

    headline: str = field("acc")
    """The metric that tables show first."""

    @model_validator(mode="after")
    def _whole(self) -> TaskSpec:
        if not self.rows and not self.files and self.hub is None:
            raise ValueError("a task needs files, hub or rows")
        if self.kind == "multiple_choice" and not self.choices:
            raise ValueError("a multiple_choice task needs choices")
        if self.kind == "generate" and self.scorer == "likelihood":
            raise ValueError("a generate task needs a scorer: exact_match, or another of scorers.py")
        if self.kind in ("multiple_choice", "cloze") and not self.gold:
            raise ValueError(f"a {self.kind} task needs gold")
        if self.fewshot.count and not (self.fewshot.files or self.fewshot.hub or self.fewshot.rows):
            raise ValueError("fewshot.count is above 0 and there are neither fewshot.files, fewshot.hub nor rows")
        if self.kind == "code" and max(self.code.pass_at, default=0) > self.sampling.samples:
            raise ValueError(
                f"pass@{max(self.code.pass_at)} needs as many samples, and sampling.samples is {self.sampling.samples}"
            )
        if self.sampling.samples > 1 and self.sampling.temperature == 0:
            raise ValueError("sampling.samples above 1 at temperature 0 gives the same answer each time")
        if self.stride is not None and self.window is not None and self.stride > self.window:
            raise ValueError(f"stride {self.stride} is above window {self.window}")
        return self
