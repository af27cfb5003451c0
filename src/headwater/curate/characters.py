"""Characters and white space: what cleaning changes in a text besides markup.

Each function is pure, linear in the length of the text, and changes nothing in what it has made.
"""

from __future__ import annotations

import re

_NEWLINES = "\r\x0b\x0c\x85\u2028\u2029"
_SPACES = "\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
_ODD = re.compile(
    # controls, exotic spaces and line ends, soft hyphen, zero-width space, direction marks, byte order mark,
    # interlinear marks, noncharacters, lone surrogates; joiners (200c, 200d) stay, emoji and Persian need them
    "[\x00-\x08\x0b-\x1f\x7f-\xa0\xad\u1680\u2000-\u200b\u200e\u200f\u2028-\u202f\u205f-\u206f\u3000\ufdd0-\ufdef"
    "\ufeff\ufff9-\ufffb\ufffe\uffff\ud800-\udfff]"
)
_ODD_IN_CODE = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f\ufeff\ud800-\udfff]")
_PLAIN = {**dict.fromkeys(_NEWLINES, "\n"), **dict.fromkeys(_SPACES, " ")}

_WIDE = re.compile("[\uff02-\uff07\uff0a\uff0b\uff0d-\uff19\uff1c-\uff1e\uff20-\uff3f\uff41-\uff5d]")
"""Full-width letters, digits and signs. Not ！（），：；？～, which Chinese uses, nor the accent ｀, which would make
Markdown code of text."""

_HAN = "\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003fffd"
_BEFORE = _HAN + "）》〉」』】〕”’"
_AFTER = _HAN + "（《〈「『【〔“‘"
_CODE_OR_ADDRESS = r"`[^`\n]+`|(?:https?|ftp)://[^\s<>\"'`，。；！？、（）]+"
_BEFORE_MARK = re.compile(f"[{_BEFORE}]")
_MARK = rf"[,.;:?!](?:(?<=[{_BEFORE}].) ?(?=[{_AFTER}])|(?<=[{_HAN}].)(?=\n|\Z))"
_HALF_MARK = re.compile(_MARK)
_HALF_MARK_OR_CODE = re.compile(rf"{_CODE_OR_ADDRESS}|({_MARK})")
HALF_MARKS = ",.;:?!"
_FULL = {",": "，", ".": "。", ";": "；", ":": "：", "?": "？", "!": "！"}

_INNER_SPACE = re.compile(r"(?:\t(?<=\S\t)| (?<=\S ) )[ \t]*")  # begins with a character: that is found fast
_INDENTED_HAN = re.compile(rf"^[ \t]+(?=[{_HAN}])", re.MULTILINE)
_BLANK_LINES = re.compile(r"\n{3,}")


def plain_characters(text: str) -> str:
    """All line ends become \\n, all spaces U+0020; control and invisible characters go."""
    if "\r" in text:
        text = text.replace("\r\n", "\n")
    return _ODD.sub(lambda match: _PLAIN.get(match[0], ""), text) if _ODD.search(text) else text


def is_odd(character: str) -> bool:
    """Whether `plain_characters` would change a character."""
    return _ODD.match(character) is not None


def is_wide(character: str) -> bool:
    """Whether `fold_width` would change a character."""
    return _WIDE.match(character) is not None


def is_before_mark(character: str) -> bool:
    """Whether ASCII punctuation after this character may become Chinese."""
    return _BEFORE_MARK.match(character) is not None


def has_wide(text: str) -> bool:
    """Whether `fold_width` would change the text."""
    return not text.isascii() and _WIDE.search(text) is not None


def fold_width(text: str) -> str:
    """Full-width letters, digits and signs to ASCII: Ａ１％＝ to A1%=. Chinese punctuation stays."""
    return _WIDE.sub(lambda match: chr(ord(match[0]) - 0xFEE0), text)


def full_width_punctuation(text: str) -> str:
    """ASCII , . ; : ? ! between Chinese characters, or after one at the end of a line, to ，。；：？！.

    Numbers, Latin words, addresses and `inline code` keep theirs. For Chinese prose only.
    """
    if _HALF_MARK.search(text) is None:
        return text
    return _HALF_MARK_OR_CODE.sub(lambda match: _FULL[match[1][0]] if match[1] else match[0], text)


def tidy_lines(text: str) -> str:
    """No spaces at the ends of lines, one inside, none before a line's first Chinese character, at most one blank
    line in a row. Other indentation stays: lists and code need it."""
    if "  " in text or "\t" in text:
        text = _INNER_SPACE.sub(" ", text)
    if " \n" in text or "\t\n" in text or text.endswith((" ", "\t")):
        text = "\n".join([line.rstrip(" \t") for line in text.split("\n")])
    if "\n " in text or "\n\t" in text or text.startswith((" ", "\t")):
        text = _INDENTED_HAN.sub("", text)
    return _BLANK_LINES.sub("\n\n", text) if "\n\n\n" in text else text


def tidy_code(text: str) -> str:
    """Program code with \\n line ends, without control characters, spaces at ends of lines and outer blank lines.
    Indentation and form feeds stay."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if _ODD_IN_CODE.search(text):
        text = _ODD_IN_CODE.sub("", text)
    return "\n".join([line.rstrip(" \t") for line in text.split("\n")]).strip("\n")
