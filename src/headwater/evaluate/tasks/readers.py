"""Rows of public benchmarks in their original formats, and in common flat ones, as fields that templates see.

A reader is one small function from a row to a row. It raises KeyError or ValueError, which sets the row aside.

    read_row("arc", {"question": {"stem": "2+2?", "choices": [{"text": "4", "label": "A"}]}, "answerKey": "A"})
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

Row = dict[str, Any]
_READERS: dict[str, Callable[[Row], Row]] = {"plain": lambda row: row}
_EXPANDERS: dict[str, Callable[[list[Any]], list[Any]]] = {}


def reader(name: str) -> Callable[[Callable[[Row], Row]], Callable[[Row], Row]]:
    """Register a reader under the name a task's `reader` field has."""

    def register(function: Callable[[Row], Row]) -> Callable[[Row], Row]:
        _READERS[name] = function
        return function

    return register


def expander(name: str) -> Callable[[Callable[[list[Any]], list[Any]]], Callable[[list[Any]], list[Any]]]:
    """Register what makes rows of a file whose entries hold several questions each, for the reader of that name. Rows
    that are flat already pass unchanged."""

    def register(function: Callable[[list[Any]], list[Any]]) -> Callable[[list[Any]], list[Any]]:
        _EXPANDERS[name] = function
        return function

    return register


def expand(name: str, rows: list[Any]) -> list[Any]:
    """One row a question."""
    return _EXPANDERS[name](rows) if name in _EXPANDERS else rows


def reader_names() -> list[str]:
    return sorted(_READERS)


def read_row(name: str, row: Row) -> Row:
    """The fields of a row. KeyError or ValueError for a row that is not of the format."""
    return _READERS[name](row)


@reader("arc")
def _arc(row: Row) -> Row:
    """AI2's files (question.stem, question.choices) and the hub's (question, choices.text, choices.label)."""
    question, choices = row["question"], row.get("choices")
    if isinstance(question, dict):
        pairs = [(choice["label"], choice["text"]) for choice in question["choices"]]
        question = question["stem"]
    elif isinstance(choices, dict):
        pairs = list(zip(choices["label"], choices["text"], strict=True))
    else:
        raise ValueError("has neither question.choices nor choices.text")
    labels = [label for label, _ in pairs]
    if row["answerKey"] not in labels:
        raise ValueError(f"the answer {row['answerKey']!r} is none of {labels}")
    return {
        "id": row.get("id"),
        "question": question,
        "choices": [text for _, text in pairs],
        "answer": labels.index(row["answerKey"]),
    }


@reader("hellaswag")
def _hellaswag(row: Row) -> Row:
    """The original (activity_label, ctx_a, ctx_b) and flat files whose `ctx` begins with the activity; cleaned as
    lm-evaluation-harness does."""
    if "ctx_a" in row:
        query = f"{row['activity_label']}: {row['ctx_a']} {row['ctx_b'].capitalize()}"
    else:
        query = row["ctx"]
    if row["label"] in ("", None):
        raise ValueError("has no label: it is of the hidden test split")
    return {
        "id": row.get("ind", row.get("id")),
        "query": _wikihow(query),
        "choices": [_wikihow(ending) for ending in row["endings"]],
        "answer": int(row["label"]),
    }


def _wikihow(text: str) -> str:
    text = text.strip().replace(" [title]", ". ")
    return re.sub(r"\[.*?\]", "", text).replace("  ", " ")


@reader("lambada")
def _lambada(row: Row) -> Row:
    words = row["text"].split(" ")
    if len(words) < 2:
        raise ValueError("has fewer than two words")
    return {"context": " ".join(words[:-1]), "target": words[-1]}


@reader("letters")
def _letters(row: Row) -> Row:
    """MMLU and CMMLU: question, four choices (a list, or fields A to D), the answer as letter or number."""
    choices = row["choices"] if "choices" in row else [row[letter] for letter in "ABCD"]
    answer = row["answer"] if "answer" in row else row["Answer"]
    answer = "ABCD".index(answer) if isinstance(answer, str) else int(answer)
    subject = row.get("subject", "")
    return {
        "question": str(row["question"] if "question" in row else row["Question"]).strip(),
        "choices": choices,
        "answer": answer,
        "subject": subject,
        "subject_words": subject.replace("_", " "),
        "subject_zh": CMMLU_SUBJECTS.get(subject, subject.replace("_", " ")),
    }


@reader("chid")
def _chid(row: Row) -> Row:
    """FewCLUE's ChID: an idiom is left out of a passage; a choice is an idiom and the rest of the passage."""
    before, mark, after = row["content"].partition("#idiom#")
    if not mark:
        raise ValueError("has no #idiom# in its content")
    candidates = row["candidates"]
    return {
        "id": row.get("id"),
        "before": before,
        "choices": candidates,
        "completed": [idiom + after for idiom in candidates],
        "answer": int(row["answer"]),
    }


CMMLU_SUBJECTS = {
    "anatomy": "解剖学", "ancient_chinese": "古汉语", "chinese_teacher_qualification": "教师资格",
    "college_actuarial_science": "大学精算学", "college_engineering_hydrology": "大学工程水文学",
    "college_mathematics": "大学数学", "college_medical_statistics": "大学医学统计", "computer_security": "计算机安全",
    "economics": "经济学", "elementary_mathematics": "初等数学", "food_science": "食品科学", "global_facts": "全球事实",
    "high_school_chemistry": "高中化学", "high_school_mathematics": "高中数学", "human_sexuality": "人类性行为",
    "journalism": "新闻学", "logical": "逻辑学", "philosophy": "哲学", "professional_accounting": "专业会计",
    "professional_psychology": "专业心理学",
}  # fmt: skip
"""Chinese names of subjects of CMMLU, as its prompts use them; others go by their own."""
