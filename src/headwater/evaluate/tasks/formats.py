"""Readers of benchmarks whose original files nest questions in documents, or need more than a look at one row.

Registered under the names a task's `reader` field has; `readers` imports this module.

    read_row("gsm8k", {"question": "...", "answer": "... #### 18"})["final"]     # "18"
"""

from __future__ import annotations

import re
from typing import Any

from headwater.evaluate.tasks.readers import Row, expander, reader


@reader("gsm8k")
def _gsm8k(row: Row) -> Row:
    solution, mark, final = row["answer"].rpartition("#### ")
    if not mark or not final.strip():
        raise ValueError("has no #### before its final answer")
    return {
        "question": row["question"],
        "solution": row["answer"],
        "reasoning": solution.strip(),
        "final": final.strip(),
    }


@reader("open_question")
def _open_question(row: Row) -> Row:
    """Natural Questions open (answer: a list), TriviaQA (Answer.Aliases; the hub's answer.aliases) and flat files."""
    answer = next((row[name] for name in ("answer", "answers", "Answer") if name in row), None)
    if isinstance(answer, dict):
        answer = answer.get("aliases", answer.get("Aliases"))
    answers = [answer] if isinstance(answer, str) else answer
    if not answers:
        raise ValueError("has no answer")
    question = row["question"] if "question" in row else row["Question"]
    identity = next((row[name] for name in ("id", "question_id", "QuestionId") if name in row), None)
    return {
        "id": identity,
        "question": question.strip().removesuffix("?").rstrip(),
        "answers": [str(a) for a in answers],
    }


@expander("open_question")
def _open_questions(rows: list[Any]) -> list[Any]:
    """TriviaQA's original file is one object with the list `Data`."""
    return rows[0]["Data"] if len(rows) == 1 and isinstance(rows[0], dict) and "Data" in rows[0] else rows


@reader("span")
def _span(row: Row) -> Row:
    """A question whose answer stands in the passage: CMRC 2018 and others of SQuAD's form, flat."""
    answers = row["answers"].get("text", []) if isinstance(row["answers"], dict) else row["answers"]
    answers = [answer["text"] if isinstance(answer, dict) else answer for answer in answers]
    if not answers or not answers[0].strip():
        raise ValueError("has no answer")
    return {"id": row.get("id"), "context": row["context"], "question": row["question"], "answers": answers}


@expander("span")
def _spans(rows: list[Any]) -> list[Any]:
    """SQuAD's nesting (paragraphs, qas) and CMRC 2018's own (context_text, qas)."""
    found: list[Any] = []
    for row in rows:
        if isinstance(row, dict) and "paragraphs" in row:
            found += [{**qa, "context": part["context"]} for part in row["paragraphs"] for qa in part["qas"]]
        elif isinstance(row, dict) and "context_text" in row:
            for qa in row["qas"]:
                asked = {"id": qa.get("query_id"), "question": qa["query_text"], "answers": qa["answers"]}
                found.append({**asked, "context": row["context_text"]})
        else:
            found.append(row)
    return found


@reader("c3")
def _c3(row: Row) -> Row:
    return row


@expander("c3")
def _c3_documents(rows: list[Any]) -> list[Any]:
    """C3's own files: [[lines of the passage], [questions], id]."""
    found: list[Any] = []
    for row in rows:
        if not (isinstance(row, list) and len(row) == 3):
            found.append(row)
            continue
        lines, asked, identity = row
        for number, question in enumerate(asked):
            fields = {"question": question["question"], "choices": question["choice"], "answer": question["answer"]}
            found.append({"id": f"{identity}-{number}", "context": "\n".join(lines), **fields})
    return found


_PAGE = re.compile(r"(?m)^(?= = [^=\n].*[^=\n] = \n)")


@expander("wikitext")
def _wikitext_pages(rows: list[Any]) -> list[Any]:
    """The raw file as documents: each begins at a title of the first level."""
    found: list[Any] = []
    for row in rows:
        page = row.get("text", row.get("page")) if isinstance(row, dict) else None
        if not isinstance(page, str):
            found.append(row)
            continue
        found += [{"page": part} for part in _PAGE.split(page) if part.strip()]
    return found


@reader("wikitext")
def _wikitext(row: Row) -> Row:
    return {"page": row["page"], "text": detokenised(row["page"])}


def detokenised(text: str) -> str:
    """WikiText as it was before its words were set apart, by lm-evaluation-harness's rules, in its order."""
    for pattern, into in _DETOKENISE:
        text = re.sub(pattern, into, text)
    return text


_DETOKENISE = (
    ("s '", "s'"),
    (r"/' [0-9]/", r"/'[0-9]/"),
    (" @-@ ", "-"),
    (" @,@ ", ","),
    (r" @\.@ ", "."),
    (" : ", ": "),
    (" ; ", "; "),
    (r" \. ", ". "),
    (" ! ", "! "),
    (r" \? ", "? "),
    (" , ", ", "),
    (r"\(\s*([^\)]*?)\s*\)", r"(\1)"),
    (r"\[\s*([^\]]*?)\s*\]", r"[\1]"),
    (r"{\s*([^}]*?)\s*}", r"{\1}"),
    (r"\"\s*([^\"]*?)\s*\"", r'"\1"'),
    (r"'\s*([^']*?)\s*'", r"'\1'"),
    ("= = = =", "===="),
    ("= = =", "==="),
    ("= =", "=="),
    (" " + chr(176) + " ", chr(176)),
    (r" \n", "\n"),
    (r"\n ", "\n"),
    (" N ", " 1 "),
    (" 's", "'s"),
)
