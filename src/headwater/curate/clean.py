"""Cleaning: one text in, the text to train on out, or the rule that dropped it.

Prose loses mojibake, HTML, control characters, stray white space, lines of boilerplate and personal data; full-width
letters, digits and signs become ASCII, and ASCII punctuation between Chinese characters becomes Chinese. Nothing is
normalised beyond that (NFKC would turn ，？： into ASCII). Markdown code, inline code and addresses stay as they are,
and program code only gets line ends, control characters and outer blank lines put right. Cleaning a cleaned text
changes nothing.

    clean_text("<p>今天天气很好,我们去公园散步,你来不来?</p>")   # 今天天气很好，我们去公园散步，你来不来？
    clean_document("x = 1\\r\\n", lang="python").rule           # clean.too-short
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from headwater.core.units import SPACE, count_units
from headwater.curate.boilerplate import drop_lines, is_boilerplate, notice_lines
from headwater.curate.characters import (
    fold_width,
    full_width_punctuation,
    has_wide,
    plain_characters,
    tidy_code,
)
from headwater.curate.config import CleanConfig, CurateConfig, LanguageConfig
from headwater.curate.language import (
    CJK_LANGUAGES,
    CODE_LANGUAGES,
    UNKNOWN,
    Guess,
    answered,
    has_letters,
    identify,
    is_chinese,
)
from headwater.curate.markdown import outside_code, prose_and_rest, split_fences
from headwater.curate.markup import decode_entities, is_page, strip_tags
from headwater.curate.mojibake import repair
from headwater.curate.pii import CARD, EMAIL, ID, IP, PHONE, mask
from headwater.curate.survey import (
    AT,
    BOILERPLATE,
    CODE_OR_LINK,
    EVERYTHING,
    FENCE,
    HALF_MARK,
    IP_ADDRESS,
    MARKUP_SIGNS,
    MOJIBAKE,
    NOTICE,
    NUMBER,
    ODD,
    SPACING,
    WIDE,
    Survey,
    survey,
    tidied,
    tidied_all,
)

TOO_SHORT = "clean.too-short"
MARKUP = "clean.markup"
WRONG_LANGUAGE = "language.not-accepted"
VERSIONS = {TOO_SHORT: 1, MARKUP: 1, WRONG_LANGUAGE: 3}
"""Every rule here and its version; raise it when a rule would decide otherwise than before."""

_LEAST_READABLE = 40
"""A text with fewer characters than this outside code and addresses is judged as it is."""

_ROUNDS = 16  # of HTML inside HTML ("<b<b>>", "&amp;nbsp;"); what needs more is no text


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What cleaning decided. `text` is None if a rule dropped it; then `rule`, its `version`, the `score` it compared
    and a `detail` for people say why. `lang` and `lang_share` are what the text is in; `units` counts the text.
    `edits` says how many runs of mojibake, lines of boilerplate and personal data of each kind were changed; `readable`
    is the text without its code and addresses, which rules are asked about ("" for program code: all of it)."""

    text: str | None
    rule: str = ""
    version: int = 0
    score: float = 0.0
    detail: str = ""
    lang: str = ""
    lang_share: float = 0.0
    units: int = 0
    edits: dict[str, int] = field(default_factory=dict)
    readable: str = ""
    code: bool = False


_DEFAULT = CurateConfig()


def clean_text(text: str, lang: str = "zh") -> str | None:
    """The cleaned text, or None if it has fewer than 20 characters or is mostly not in `lang`.

    `lang` is an ISO 639-1 code; "" accepts any language; "code" or a programming language means program code.
    """
    accepted = LanguageConfig(accepted=(lang,) if lang else ())
    return clean_document(text, lang=lang, config=CurateConfig(language=accepted)).text


def clean_document(
    text: str,
    *,
    lang: str = "",
    domain: str = "",
    config: CurateConfig = _DEFAULT,
    extracted: bool = False,
    seen: Survey | None = None,
) -> Cleaned:
    """Clean one text by a recipe's `curate` section and say what was decided: see `cleaning`."""
    return answered([cleaning(text, lang=lang, domain=domain, config=config, extracted=extracted, seen=seen)])[0]


def cleaning(
    text: str, *, lang: str, domain: str, config: CurateConfig, extracted: bool, seen: Survey | None
) -> Generator[str, Guess, Cleaned]:
    """Clean one of several texts, whose languages `answered` tells together.

    `lang` is what the source claims; it decides for program code and for texts of no clear language. `extracted`
    says that the text comes out of an HTML extractor, so that what looks like a tag in it is text. `seen` is what a
    survey said of the text, if there was one: it spares steps that would find nothing, and changes nothing.
    """
    options = config.clean
    if lang == "code" or lang in CODE_LANGUAGES or domain in options.code_domains:
        cleaned = tidy_code(text) if options.tidy else text
        units = seen.units if seen is not None and cleaned == text else count_units(cleaned)
        return _too_short(cleaned, lang, options) or Cleaned(cleaned, lang=lang, lang_share=1.0, units=units, code=True)
    edits: dict[str, int] = {}
    parts = _prepared(text, options, edits, html=options.html and not extracted, seen=seen or survey(text))
    if parts is None:
        return Cleaned(None, MARKUP, VERSIONS[MARKUP], _ROUNDS, f"HTML inside HTML, over {_ROUNDS} deep", lang)
    if options.tidy:
        parts.tidy()
    words, counts = parts.words()
    readable = words
    if not has_letters(counts):  # all of it is code or addresses
        words, counts = parts.text, parts.seen.counts
    _put_right(parts, options, edits, chinese=is_chinese(counts), domain=domain)
    cleaned = parts.text.strip() if options.tidy else parts.text
    if short := _too_short(cleaned, lang, options):
        return short
    identified = yield from identify(words, counts)
    unclear = not identified.clear and lang not in CJK_LANGUAGES  # whose scripts leave no doubt
    shares = {lang: 1.0} if lang and (unclear or not identified.shares) else identified.shares
    found = next(iter(shares), UNKNOWN)
    share = identified.shares.get(found, 0.0)
    if wrong := _wrong_language(shares, config.language):
        score, detail = wrong
        return Cleaned(None, WRONG_LANGUAGE, VERSIONS[WRONG_LANGUAGE], score, detail, found, share)
    if edits:
        readable = parts.words()[0]
    if len(readable.strip()) < _LEAST_READABLE:
        readable = cleaned
    return Cleaned(cleaned, lang=found, lang_share=share, units=parts.units(), edits=edits, readable=readable)


def _wrong_language(shares: dict[str, float], config: LanguageConfig) -> tuple[float, str] | None:
    """(score, detail) if too little of a text is in accepted languages."""
    if not config.accepted:
        return None
    parts = [(shares.get(language, 0.0), language) for language in config.accepted]
    accepted = sum(share for share, _ in parts)
    largest = max(parts, key=lambda part: part[0])[1]
    least = config.thresholds.get(largest, config.min_share)
    if accepted >= least:
        return None
    found = ", ".join(f"{language} {part:.2f}" for language, part in list(shares.items())[:3])
    return round(accepted, 4), f"{found}; accepted from {least:g} on"


def _put_right(parts: Parts, options: CleanConfig, edits: dict[str, int], chinese: bool, domain: str) -> None:
    """Punctuation, boilerplate and personal data of the prose among the parts, in place."""
    if options.punctuation and chinese:
        parts.change(HALF_MARK, full_width_punctuation)
    if options.boilerplate and domain in options.boilerplate_domains:
        notices = parts.seen.flags & NOTICE and any(map(is_boilerplate, notice_lines(parts.text)))
        if notices or parts.seen.flags & BOILERPLATE:
            parts.change(BOILERPLATE | NOTICE, lambda piece: _without_lines(piece, edits))
    kinds = [kind for kind in options.pii if parts.seen.flags & _SIGNS_OF[kind]]
    if kinds:
        parts.change(EVERYTHING, lambda piece: _masked(piece, kinds, edits))


_SIGNS_OF = {EMAIL: AT, IP: IP_ADDRESS, PHONE: NUMBER, ID: NUMBER, CARD: NUMBER}


def _without_lines(piece: str, edits: dict[str, int]) -> str:
    kept, lines = drop_lines(piece)
    if not lines:
        return piece
    edits["boilerplate"] = edits.get("boilerplate", 0) + lines
    return tidied(kept)


def _masked(text: str, kinds: list[str], edits: dict[str, int]) -> str:
    masked, counts = mask(text, kinds)
    if counts and "`" in text:
        return outside_code(text, lambda part: _noted(*mask(part, kinds), edits))
    return _noted(masked, counts, edits)


def _noted(masked: str, counts: dict[str, int], edits: dict[str, int]) -> str:
    for kind, count in counts.items():
        edits[kind] = edits.get(kind, 0) + count
    return masked


def _too_short(cleaned: str, lang: str, config: CleanConfig) -> Cleaned | None:
    if len(cleaned) >= config.min_characters:
        return None
    detail = f"{len(cleaned)} characters after cleaning, fewer than {config.min_characters}"
    return Cleaned(None, TOO_SHORT, VERSIONS[TOO_SHORT], len(cleaned), detail, lang or UNKNOWN)


class Parts:
    """Prose and Markdown code blocks in turn (see `split_fences`), and what is known of the text they make up."""

    def __init__(self, pieces: list[str], seen: Survey) -> None:
        self._pieces = pieces
        self._seen: Survey | None = seen

    @property
    def text(self) -> str:
        return self._pieces[0] if len(self._pieces) == 1 else "".join(self._pieces)

    @property
    def seen(self) -> Survey:
        if self._seen is None:
            self._seen = survey(self.text)
        return self._seen

    def change(self, flag: int, change: Callable[[str], str]) -> bool:
        """Change each piece of prose, if there may be what the flag stands for; says whether anything changed."""
        if not self.seen.flags & flag:
            return False
        return self._replace([change(piece) for piece in self._pieces[::2]])

    def _replace(self, after: list[str]) -> bool:
        """Put pieces of prose in place of those there are; says whether that changes anything."""
        if after == self._pieces[::2]:
            return False
        self._pieces[::2] = after
        self._seen = None
        return True

    def tidy(self) -> None:
        """Tidy the lines of the prose."""
        seen, size = self.seen, len(self.text)
        if seen.flags & SPACING and self._replace(tidied_all(self._pieces[::2])):
            self._seen = seen.without_spaces(size - len(self.text))

    def words(self) -> tuple[str, NDArray[np.int64]]:
        """What a person would read, no code blocks, inline code or addresses, and its characters by class."""
        if not self.seen.flags & (FENCE | CODE_OR_LINK):
            return self.text, self.seen.counts
        words, left_out = prose_and_rest(self._pieces)
        if not left_out:
            return words, self.seen.counts
        if 2 * len(words) < len(self.text):
            return words, survey(words).counts
        counts = self.seen.counts - survey("".join(left_out)).counts
        counts[SPACE] += len(left_out)  # each leaves a space or a line end
        return words, counts

    def units(self) -> int:
        """Units of the text; white space at its ends plays no part."""
        return self.seen.units


def _prepared(text: str, config: CleanConfig, edits: dict[str, int], html: bool, seen: Survey) -> Parts | None:
    """The text with plain characters and without markup; None if markup does not come to an end."""
    for _ in range(_ROUNDS):
        before, text = text, _characters(text, config, edits, seen)
        seen = seen if text == before else survey(text)
        if html and seen.flags & MARKUP_SIGNS and is_page(text):
            from headwater.curate.html import PageTooCostlyError, extract_page

            try:
                text = extract_page(text.encode()).text
            except PageTooCostlyError:
                return None
            seen = survey(text)
            continue
        parts = Parts(split_fences(text) if seen.flags & FENCE else [text], seen)
        if config.width:
            parts.change(WIDE, _folded)
        if not (html and parts.change(MARKUP_SIGNS, _without_markup)):
            return parts
        text, seen = parts.text, parts.seen
    return None


def _characters(text: str, config: CleanConfig, edits: dict[str, int], seen: Survey) -> str:
    """Mojibake put right and plain characters, until neither finds more: an odd character may be part of mojibake, or
    stand between its parts."""
    flags = seen.flags
    while flags & (MOJIBAKE | ODD):
        before = text
        if config.mojibake and flags & MOJIBAKE:
            text, runs = repair(text)
            if runs:
                edits["mojibake"] = edits.get("mojibake", 0) + runs
        if config.tidy:
            text = plain_characters(text)
        if text == before:
            break
        flags = MOJIBAKE | ODD
    return text


def _folded(piece: str) -> str:
    return outside_code(piece, fold_width) if has_wide(piece) else piece


def _without_markup(piece: str) -> str:
    if "<" not in piece and "&" not in piece:
        return piece
    return outside_code(piece, lambda part: decode_entities(strip_tags(part) if "<" in part else part))
