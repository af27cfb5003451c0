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

from dataclasses import dataclass, field

from headwater.core.units import count_units
from headwater.curate.boilerplate import drop_lines
from headwater.curate.characters import (
    fold_width,
    full_width_punctuation,
    has_wide,
    plain_characters,
    tidy_code,
    tidy_lines,
)
from headwater.curate.config import CleanConfig, CurateConfig, LanguageConfig
from headwater.curate.language import (
    CJK_LANGUAGES,
    CODE_LANGUAGES,
    UNKNOWN,
    has_letters,
    identify,
    is_chinese,
    script_counts,
)
from headwater.curate.markdown import outside_code, prose, split_fences
from headwater.curate.markup import decode_entities, is_page, strip_tags
from headwater.curate.mojibake import repair
from headwater.curate.pii import mask

TOO_SHORT = "clean.too-short"
MARKUP = "clean.markup"
WRONG_LANGUAGE = "language.not-accepted"
VERSIONS = {TOO_SHORT: 1, MARKUP: 1, WRONG_LANGUAGE: 2}
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
    text: str, *, lang: str = "", domain: str = "", config: CurateConfig = _DEFAULT, extracted: bool = False
) -> Cleaned:
    """Clean one text by a recipe's `curate` section and say what was decided.

    `lang` is what the source claims; it decides for program code and for texts of no clear language. `extracted`
    says that the text comes out of an HTML extractor, so that what looks like a tag in it is text.
    """
    options = config.clean
    if lang == "code" or lang in CODE_LANGUAGES or domain in options.code_domains:
        cleaned = tidy_code(text) if options.tidy else text
        return _too_short(cleaned, lang, options) or Cleaned(
            cleaned, lang=lang, lang_share=1.0, units=count_units(cleaned), code=True
        )
    edits: dict[str, int] = {}
    pieces = _prepared(text, options, edits, html=options.html and not extracted)
    if pieces is None:
        return Cleaned(None, MARKUP, VERSIONS[MARKUP], _ROUNDS, f"HTML inside HTML, over {_ROUNDS} deep", lang)
    if options.tidy:
        pieces[::2] = [tidy_lines(piece) for piece in pieces[::2]]
    words = readable = prose(pieces)
    counts = script_counts(words)
    if not has_letters(counts):  # all of it is code or addresses
        words = "".join(pieces)
        counts = script_counts(words)
    _put_right(pieces, options, edits, chinese=is_chinese(counts), domain=domain)
    cleaned = "".join(pieces)
    cleaned = cleaned.strip() if options.tidy else cleaned
    if short := _too_short(cleaned, lang, options):
        return short
    identified = identify(words, counts)
    unclear = not identified.clear and lang not in CJK_LANGUAGES  # whose scripts leave no doubt
    shares = {lang: 1.0} if lang and (unclear or not identified.shares) else identified.shares
    found = next(iter(shares), UNKNOWN)
    share = identified.shares.get(found, 0.0)
    if wrong := _wrong_language(shares, config.language):
        score, detail = wrong
        return Cleaned(None, WRONG_LANGUAGE, VERSIONS[WRONG_LANGUAGE], score, detail, found, share)
    if edits:
        readable = prose(pieces)
    if len(readable.strip()) < _LEAST_READABLE:
        readable = cleaned
    return Cleaned(cleaned, lang=found, lang_share=share, units=count_units(cleaned), edits=edits, readable=readable)


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


def _put_right(pieces: list[str], options: CleanConfig, edits: dict[str, int], chinese: bool, domain: str) -> None:
    """Punctuation, boilerplate and personal data of the prose among the pieces, in place."""
    if options.punctuation and chinese:
        pieces[::2] = [full_width_punctuation(piece) for piece in pieces[::2]]
    if options.boilerplate and domain in options.boilerplate_domains:
        for place in range(0, len(pieces), 2):
            pieces[place], lines = drop_lines(pieces[place])
            if lines:
                edits["boilerplate"] = edits.get("boilerplate", 0) + lines
                pieces[place] = tidy_lines(pieces[place])
    if options.pii:
        pieces[::2] = [_masked(piece, options, edits) for piece in pieces[::2]]


def _masked(text: str, options: CleanConfig, edits: dict[str, int]) -> str:
    masked, counts = mask(text, options.pii)
    if counts and "`" in text:
        return outside_code(text, lambda part: _mask_part(part, options, edits))
    return _noted(masked, counts, edits)


def _mask_part(text: str, options: CleanConfig, edits: dict[str, int]) -> str:
    return _noted(*mask(text, options.pii), edits)


def _noted(masked: str, counts: dict[str, int], edits: dict[str, int]) -> str:
    for kind, count in counts.items():
        edits[kind] = edits.get(kind, 0) + count
    return masked


def _too_short(cleaned: str, lang: str, config: CleanConfig) -> Cleaned | None:
    if len(cleaned) >= config.min_characters:
        return None
    detail = f"{len(cleaned)} characters after cleaning, fewer than {config.min_characters}"
    return Cleaned(None, TOO_SHORT, VERSIONS[TOO_SHORT], len(cleaned), detail, lang or UNKNOWN)


def _prepared(text: str, config: CleanConfig, edits: dict[str, int], html: bool) -> list[str] | None:
    """Prose and Markdown code blocks in turn (see `split_fences`), with plain characters and without markup; None if
    markup does not come to an end."""
    for _ in range(_ROUNDS):
        text = _characters(text, config, edits)
        if html and is_page(text):
            from headwater.curate.html import PageTooCostlyError, extract_page

            try:
                text = extract_page(text.encode()).text
            except PageTooCostlyError:
                return None
            continue
        pieces = split_fences(text)
        folded = [_folded(piece) for piece in pieces[::2]] if config.width else pieces[::2]
        plain = [_without_markup(piece) for piece in folded] if html else folded
        pieces[::2] = plain
        if plain == folded:
            return pieces
        text = "".join(pieces)
    return None


def _characters(text: str, config: CleanConfig, edits: dict[str, int]) -> str:
    """Mojibake put right and plain characters, until neither finds more: an odd character may be part of mojibake, or
    stand between its parts."""
    while True:
        before = text
        if config.mojibake:
            text, runs = repair(text)
            if runs:
                edits["mojibake"] = edits.get("mojibake", 0) + runs
        if config.tidy:
            text = plain_characters(text)
        if text == before:
            return text


def _folded(piece: str) -> str:
    return outside_code(piece, fold_width) if has_wide(piece) else piece


def _without_markup(piece: str) -> str:
    if "<" not in piece and "&" not in piece:
        return piece
    return outside_code(piece, lambda part: decode_entities(strip_tags(part) if "<" in part else part))
