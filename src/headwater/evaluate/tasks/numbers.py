"""Scorers of short answers that people write in many ways: the number at the end of a solution, and names with aliases.

    extract("robust", "So she makes $1,018 a day.")     # "1018"

One generation is read by several rules, because harnesses disagree on the same text; where they disagree the record
says so. GSM8K's rules:

- strict: lm-evaluation-harness's strict-match, the first `#### NUMBER`
- strict_cot: its gsm8k_cot, the first `The answer is NUMBER.`
- flexible: its flexible-extract, the last thing that looks like a number, which may be `...`
- opencompass: OpenCompass's, the last number, compared as a number; `1,018` is 18 to it
- robust: ours, the answer after the last mark (`####`, `\\boxed`, "the answer is", 答案是), else the last number, of
  the first solution, with thousands separators, currency, units and fractions understood, compared as a number
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from fractions import Fraction

from headwater.evaluate.tasks.items import Item
from headwater.evaluate.tasks.scorers import Metrics, Scored, normalise, scorer

INVALID = "[invalid]"

_STRICT = re.compile(r"#### (\-?[0-9\.\,]+)")
_STRICT_COT = re.compile(r"The answer is (\-?[0-9\.\,]+).")
_FLEXIBLE = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")
_OPENCOMPASS = re.compile(r"\-?\d+\.\d+|\-?\d+")
_IGNORED = (re.compile(","), re.compile(r"\$"), re.compile(r"(?s).*#### "), re.compile(r"\.$"))
_NUMBER = r"-?\s?[$¥€£￥]?\s?-?(?:\d{1,3}(?:[,，]\d{3})+|\d+)(?:\.\d+)?(?:\s?/\s?\d+(?:\.\d+)?)?"
_NEXT_QUESTION = re.compile(r"\n\s*(?:Question|Q|问题|问)\s*[:：]")
_MARKS = (
    rf"####\s*({_NUMBER})",
    rf"\\boxed\{{\s*\\?({_NUMBER})",
    rf"(?:answer|result|total)(?:\s+\w+){{0,3}}?\s*(?:is|=|:)\s*:?\s*\**\s*\\?({_NUMBER})",
    rf"(?:答案|结果)\s*(?:是|为|等于|[:：=])\s*[:：]?\s*\**\s*({_NUMBER})",
)
_MARKED = tuple(re.compile(mark, re.IGNORECASE) for mark in _MARKS)
_PLAIN = re.compile(_NUMBER)


def _first(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return found[1].strip() if found else INVALID


def _flexible(text: str) -> str:
    found = _FLEXIBLE.findall(text)
    return next(part for part in found[-1] if part).strip() if found else INVALID


def _opencompass(text: str) -> str:
    found = _OPENCOMPASS.findall(text.split("Question:")[0])
    return found[-1] if found else "NULL"


def _robust(text: str) -> str:
    solution = _NEXT_QUESTION.split(text, maxsplit=1)[0]
    for mark in _MARKED:
        found = mark.findall(solution)
        if found:
            return _clean(found[-1])
    found = _PLAIN.findall(solution)
    return _clean(found[-1]) if found else INVALID


def _clean(number: str) -> str:
    return re.sub(r"[\s$¥€£￥,，]", "", number)


EXTRACTORS: dict[str, Callable[[str], str]] = {
    "strict": lambda text: _first(_STRICT, text),
    "strict_cot": lambda text: _first(_STRICT_COT, text),
    "flexible": _flexible,
    "opencompass": _opencompass,
    "robust": _robust,
}


def extract(rule: str, text: str) -> str:
    """The answer a rule reads out of a solution; `[invalid]` (OpenCompass: `NULL`) where it finds none."""
    return EXTRACTORS[rule](text)


def is_right(rule: str, extracted: str, gold: str) -> bool:
    """Whether what a rule extracted is the gold answer, in the rule's own comparison."""
    if rule == "opencompass":
        target = gold.replace(",", "")
        try:
            return extracted == target or abs(float(extracted) - float(target)) < 1e-6
        except ValueError:
            return False
    if rule == "robust":
        number = _value(extracted)
        return number is not None and number == _value(_clean(gold))
    return _same_text(extracted) == _same_text(gold)


def _same_text(text: str) -> str:
    for pattern in _IGNORED:
        text = pattern.sub("", text)
    return text.lower()


def _value(text: str) -> Fraction | None:
    top, _, bottom = text.partition("/")
    try:
        number = Fraction(Decimal(top))
        return number / Fraction(Decimal(bottom)) if bottom else number
    except (InvalidOperation, ZeroDivisionError, ValueError, OverflowError):
        return None


def _read(rules: Sequence[str], item: Item, texts: Sequence[str]) -> Scored:
    extracted = {rule: [extract(rule, text) for text in texts] for rule in rules}
    gold = str(item.gold)
    right = {rule: [is_right(rule, one, gold) for one in found] for rule, found in extracted.items()}
    metrics = {rule: sum(verdicts) / len(verdicts) for rule, verdicts in right.items()}
    split = any(len({right[rule][place] for rule in rules}) > 1 for place in range(len(texts)))
    return Scored({**metrics, "disagree": float(split)}, {"extracted": extracted, "right": right})


@scorer("gsm8k")
def _gsm8k(item: Item, texts: Sequence[str]) -> Scored:
    return _read(("strict", "flexible", "opencompass", "robust"), item, texts)


@scorer("gsm8k_cot")
def _gsm8k_cot(item: Item, texts: Sequence[str]) -> Scored:
    return _read(("strict_cot", "flexible", "opencompass", "robust"), item, texts)


_CUT = re.compile(r"[.,]")
_LEADING_ARTICLES = re.compile(r"\b(?:The |the |An |A |The |a |an )")
_ASCII_PUNCTUATION = str.maketrans("", "", string.punctuation)


def _plain(text: str) -> str:
    return text.lower().translate(_ASCII_PUNCTUATION)


def _without_articles(text: str) -> str:
    return _plain(_LEADING_ARTICLES.sub("", text))


@scorer("aliases")
def _aliases(item: Item, texts: Sequence[str]) -> Scored:
    """A short answer that is one of several names. `exact_match` is that of lm-evaluation-harness's nq_open, whose
    answers end at the first `.` or `,` too (`St. Louis` becomes `St`): articles out, lower case, no ASCII punctuation.
    `exact_match_line` reads the line to its end and compares as SQuAD does. The task stops at a new line alone, so both
    come from one generation."""
    return _named(item, texts, _without_articles)


@scorer("trivia")
def _trivia(item: Item, texts: Sequence[str]) -> Scored:
    """As `aliases`, but `exact_match` keeps articles, as lm-evaluation-harness's triviaqa does."""
    return _named(item, texts, _plain)


def _named(item: Item, texts: Sequence[str], same: Callable[[str], str]) -> Scored:
    aliases = [str(alias) for alias in (item.gold if isinstance(item.gold, list) else [item.gold])]
    harness, squad = {same(alias) for alias in aliases}, {normalise(alias) for alias in aliases} - {""}
    lines = [text.split("\n")[0] for text in texts]
    cut = [_CUT.split(line, maxsplit=1)[0].strip() for line in lines]
    metrics: Metrics = {
        "exact_match": sum(same(one) in harness for one in cut) / len(texts),
        "exact_match_line": sum(normalise(line) in squad for line in lines) / len(texts),
    }
    metrics["disagree"] = float(metrics["exact_match"] != metrics["exact_match_line"])
    return Scored(metrics, {"cut": cut})
