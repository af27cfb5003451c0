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

from typing import Literal

from pydantic import model_validator

from headwater.core.config import Section, field

Kind = Literal["multiple_choice", "cloze", "generate"]


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

    order: Literal["first", "seeded"] = field("first")
    """`first`: the first rows of the file (of the question's group, where there are groups), the same every time;
    `seeded`: drawn for each question by its number."""

    separator: str = field("\n\n")
    """Between examples, and between the last one and the question."""


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
    `generate`: the model writes, and `scorer` reads."""

    files: tuple[str, ...] = field(...)
    """Names the data has in a folder of data, with `*`; the first that is there is read. JSON Lines, JSON, CSV, .gz."""

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
    """`generate`: strings that end an answer."""

    max_tokens: int = field(256, ge=1, unit="tokens")
    """`generate`: longest answer."""

    headline: str = field("acc")
    """The metric that tables show first."""

    @model_validator(mode="after")
    def _whole(self) -> TaskSpec:
        if self.kind == "multiple_choice" and not self.choices:
            raise ValueError("a multiple_choice task needs choices")
        if self.kind == "generate" and self.scorer == "likelihood":
            raise ValueError("a generate task needs a scorer: exact_match, or another of scorers.py")
        if self.kind != "generate" and not self.gold:
            raise ValueError(f"a {self.kind} task needs gold")
        if self.fewshot.count and not (self.fewshot.files or self.fewshot.hub):
            raise ValueError("fewshot.count is above 0 and there are neither fewshot.files nor fewshot.hub")
        return self
