"""HTML out of text: tags, comments, scripts and entities, never what only looks like them.

In: text that may hold HTML, such as a scraped snippet or Markdown with tags in it. Out: text without. `List<String>`,
`a < b`, `<stdio.h>`, `<me@example.org>` and Markdown code stay; only names of HTML elements make a tag, and its
attributes must be well-formed. All passes are linear in the length of the text.

    strip_tags("<p>Hello <b>world</b></p>")       # "\\nHello world\\n"
"""

from __future__ import annotations

import html
import re

BLOCKS = (
    "address|article|aside|blockquote|body|br|caption|center|col|colgroup|dd|details|dialog|dir|div|dl|dt|fieldset|"
    "figcaption|figure|footer|form|frameset|h[1-6]|head|header|hgroup|hr|html|legend|li|link|main|menu|meta|nav|"
    "noscript|ol|optgroup|option|p|pre|search|section|select|summary|table|tbody|tfoot|thead|title|tr|ul"
)
CELLS = "td|th"
INLINE = (
    "a|abbr|acronym|area|audio|b|base|bdi|bdo|big|button|canvas|cite|code|data|datalist|del|dfn|em|embed|font|i|iframe|"
    "img|input|ins|kbd|label|map|mark|meter|nobr|object|output|param|picture|progress|q|rb|rp|rt|rtc|ruby|s|samp|"
    "small|source|span|strike|strong|sub|sup|svg|textarea|time|track|tt|u|var|video|wbr|script|style|template"
)
FLAGS = (
    "allowfullscreen|async|autofocus|autoplay|checked|compact|controls|default|defer|disabled|download|hidden|inert|"
    "ismap|itemscope|loop|multiple|muted|nomodule|noshade|novalidate|nowrap|open|playsinline|readonly|required|"
    "reversed|selected"
)
DROPPED = ("script", "style", "template", "svg", "iframe")
"""Elements that go with all they hold."""

_NAME = rf"(?:{BLOCKS}|{CELLS}|{INLINE})"
_ATTRIBUTES = (
    rf"(?>\s+(?>[a-z@:#_][-\w.:@#]*+\s*+=\s*+(?>\"[^\"]*+\"|'[^']*+'|[^\s\"'=<>`]++)|(?:{FLAGS})(?![-\w])|/))*+"
)
TAG = re.compile(rf"<(/?)({_NAME})(?![-\w:]){_ATTRIBUTES}\s*+/?>", re.IGNORECASE | re.ASCII)
_CUSTOM = re.compile(rf"</?[a-z][a-z0-9]*+(?:-[a-z0-9]++)++{_ATTRIBUTES}\s*+/?>", re.IGNORECASE | re.ASCII)
_DOCTYPE = re.compile(r"<!doctype\b[^<>]*+>|<\?xml\b[^<>]*+\?>|<!\[CDATA\[|\]\]>", re.IGNORECASE | re.ASCII)
_BLOCK = re.compile(rf"(?:{BLOCKS})", re.IGNORECASE | re.ASCII)
_CELL = re.compile(rf"(?:{CELLS})", re.IGNORECASE | re.ASCII)
_ENTITY = re.compile(r"&(?:amp;)++|&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
_OPENERS = {name: re.compile(rf"<{name}(?![-\w:])[^<>]*+>", re.IGNORECASE | re.ASCII) for name in DROPPED}
_CLOSED = re.compile(rf"</({'|'.join(DROPPED)})", re.IGNORECASE | re.ASCII)
_CLOSERS = {name: re.compile(rf"</{name}\s*+>", re.IGNORECASE | re.ASCII) for name in DROPPED}
_PAGE = re.compile(r"\s*+(?:<\?xml[^<>]*+>\s*+)?(?:<!--.{0,500}?-->\s*+)?(?:<!doctype\s+html\b|<html\b)", re.I | re.S)


def is_page(text: str) -> bool:
    """Whether text is a whole HTML page rather than text with some HTML in it."""
    return _PAGE.match(text) is not None


def strip_tags(text: str) -> str:
    """One pass: comments and dropped elements go, block tags become line breaks, cells a space, others nothing."""
    text = _cut(text, "<!--", "-->")
    if "</" in text:
        closed = {name.lower() for name in _CLOSED.findall(text)}
        for name in DROPPED:
            if name in closed:
                text = _cut_elements(text, name)
    text = _CUSTOM.sub("", TAG.sub(_replacement, text))
    return _DOCTYPE.sub("", text) if "<!" in text or "<?" in text or "]]>" in text else text


def _replacement(match: re.Match[str]) -> str:
    name = match[2]
    if _BLOCK.fullmatch(name):
        return "\n"
    return " " if _CELL.fullmatch(name) and not match[1] else ""


def _cut(text: str, opening: str, closing: str) -> str:
    """Remove every `opening ... closing`; an opening that is never closed stays."""
    if opening not in text:
        return text
    parts, position = [], 0
    while (start := text.find(opening, position)) >= 0:
        end = text.find(closing, start + len(opening))
        if end < 0:
            break
        parts.append(text[position:start])
        position = end + len(closing)
    return "".join(parts) + text[position:]


def _cut_elements(text: str, name: str) -> str:
    parts, position = [], 0
    while opening := _OPENERS[name].search(text, position):
        closing = _CLOSERS[name].search(text, opening.end())
        if closing is None:
            break
        parts += [text[position : opening.start()], "\n"]
        position = closing.end()
    return "".join(parts) + text[position:]


def decode_entities(text: str) -> str:
    """Replace character references, except where `<` would come to begin a tag. "&amp;amp;" is one ampersand; whether
    that begins another reference ("&amp;nbsp;") is for the next pass."""
    return _ENTITY.sub(_character, text) if "&" in text else text


def _character(match: re.Match[str]) -> str:
    if match[0].startswith("&amp;"):
        return "&"
    found = html.unescape(match[0])
    following = match.string[match.end() : match.end() + 1]
    return match[0] if found == "<" and (following.isalpha() or following in ("/", "!", "?")) else found
