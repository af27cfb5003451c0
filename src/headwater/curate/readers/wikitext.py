"""Wikitext to plain text: what a reader of the page would read, without tables, templates, references, files and menus.

One pass over the marks with a stack, so time is linear in the length however deep or broken the nesting is.

    wikitext_to_text("'''Water''' is [[liquid|wet]]{{citation needed}}.<ref>A book</ref>")    # "Water is wet."
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable

from headwater.curate.readers.paired import replace_paired

VERSION = "wikitext-1"

_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_PAIRED = re.compile(
    r"<(ref|gallery|timeline|imagemap|score|hiero|templatestyles|indicator|graph|mapframe|maplink|inputbox|references|"
    r"math|syntaxhighlight|source|pre|nowiki)\b([^<>]*)>",
    re.IGNORECASE,
)
_CODE_TAGS = ("syntaxhighlight", "source", "pre")
_DEEPEST = 40
"""Marks nested deeper than this are no text of a person's."""
_BREAK = re.compile(r"<(?:br|hr)\s*/?>|</?(?:p|div|li|blockquote|poem|center)\b[^<>]*>", re.IGNORECASE)
_TAG = re.compile(r"</?[a-zA-Z][^<>]{0,2000}?>")
_MARK = re.compile(r"\{\{|\}\}|\{\||\|\}|\[\[|\]\]|-\{|\}-")
_EXTERNAL = re.compile(r"\[(?:https?:|ftp:)?//[^\s\]<>\[]+(?:[ \t]+([^\]\n]*))?\]")
_QUOTES = re.compile(r"'{2,5}")
_HEADING = re.compile(r"^(={1,6})[ \t]*(.+?)[ \t]*\1[ \t]*$")
_LIST = re.compile(r"^([*#:;]+)[ \t]*")
_SWITCH = re.compile(r"__[A-Z\u4e00-\u9fff]{3,}__")
_EMPTY_BRACKETS = re.compile(r"[(（\[][,，;；:：、·\s]{0,40}[)）\]]")
_SPACE_BEFORE = re.compile(r"(?<![ \t])[ \t]{1,8}([,.;:!?，。；：！？、)）])")
_DOUBLE_COMMA = re.compile(r"[，、；](?=[。，；！？）])|(?<=（)[，、；]")
_SPACES = re.compile(r"[ \t\u00a0]{2,}")
_BLANK_LINES = re.compile(r"\n{3,}")
_HELD = re.compile("\ue000([0-9]+)\ue001")

_NAMESPACES = frozenset(
    """file image category media special template wikipedia help portal talk user module draft mediawiki
    文件 檔案 档案 图像 圖像 图片 分类 分類 模板 帮助 維基百科 维基百科 特殊 用户 用戶 媒体 媒體
    datei bild kategorie fichier catégorie archivo categoría файл категория ファイル カテゴリ 파일 분류""".split()  # noqa: SIM905
)
_END_SECTIONS = frozenset(
    [
        "references", "external links", "see also", "further reading", "notes", "footnotes", "bibliography", "sources",
        "citations", "notes and references", "gallery", "works cited",
        "参考文献", "參考文獻", "参考资料", "參考資料", "外部链接", "外部連結", "参见", "參見", "参看",
        "外部連接", "參看",
        "注释", "註釋", "注釋", "脚注", "腳註", "延伸阅读", "延伸閱讀", "相关条目", "相關條目", "资料来源", "資料來源",
        "参考来源", "參考來源", "备注", "備註", "图集", "圖集", "扩展阅读", "擴展閱讀", "引用",
    ]
)  # fmt: skip
_KEPT_TEMPLATES = {
    "lang": 2, "le": 1, "link-en": 1, "tsl": 3, "internal link helper": 1, "nowrap": 1, "nobr": 1, "small": 1, "big": 1,
    "ruby": 1, "ilh": 1, "abbr": 1, "transl": 2, "zh-hans": 1, "zh-hant": 1, "le2": 1, "illm": 1, "quote": 1,
    "blockquote": 1, "cquote": 1, "ill": 1, "interlanguage link": 1, "math": 1, "mvar": 1, "sub": 1, "sup": 1,
}  # fmt: skip
"""Templates that stand for one of their own values: name -> which one. Others go."""

_CONVERSIONS = ("zh-hans", "zh-cn", "zh-hant", "zh-tw", "zh-hk", "zh")


def wikitext_to_text(wikitext: str) -> str:
    """The prose of a page: headings as `## Heading`, list items as `- item`, formulas as `$...$`, code in fences; ""
    if nothing is left. Private-use characters U+E000 and U+E001 of the input go."""
    held: list[str] = []

    def hold(text: str) -> str:
        held.append(text)
        return f"\ue000{len(held) - 1}\ue001"

    text = wikitext.replace("\ue000", "").replace("\ue001", "").replace("\r\n", "\n")
    text = _COMMENT.sub("", text)
    text = _paired(text, hold)
    text = _nested(text)
    text = _EXTERNAL.sub(lambda found: found[1] or "", text)
    text = _BREAK.sub("\n", text)
    text = _TAG.sub("", text)
    text = _QUOTES.sub("", text)
    text = _SWITCH.sub("", text)
    text = html.unescape(text)
    text = "\n".join(_lines(text))
    text = _HELD.sub(lambda found: held[int(found[1])] if int(found[1]) < len(held) else "", text)
    return _BLANK_LINES.sub("\n\n", text).strip()


def _paired(text: str, hold: Callable[[str], str]) -> str:
    """Leave out what stands between tags like <ref> and their ends; hold back formulas, code and <nowiki>."""

    def replace(found: re.Match[str], inside: str) -> str:
        name, inside = found[1].lower(), html.unescape(inside)
        if name == "nowiki":
            return hold(inside)
        if name == "math":
            return hold(f"${inside.strip()}$")
        return hold("\n```\n" + inside.strip("\n") + "\n```\n") if name in _CODE_TAGS else ""

    return replace_paired(text, _PAIRED, lambda found: "" if found[2].endswith("/") else rf"</{found[1]}\s*>", replace)


def _nested(text: str) -> str:
    """Resolve {{templates}}, {| tables |}, [[links]] and -{conversions}- from the inside out. What is opened and never
    closed loses its mark; a template or table goes to the end of its paragraph then."""
    stack: list[tuple[str, list[str]]] = [("", [])]
    position = 0
    for found in _MARK.finditer(text):
        mark = found[0]
        if found.start() < position:
            continue
        if mark in ("{{", "{|", "[[", "-{"):
            if mark == "{|" and text[max(0, found.start() - 1) : found.start()] not in ("", "\n", ":", " "):
                continue
            stack[-1][1].append(text[position : found.start()])
            if len(stack) < _DEEPEST:
                stack.append((mark, []))
            position = found.end()
            continue
        opened = {"}}": "{{", "|}": "{|", "]]": "[[", "}-": "-{"}[mark]
        if mark == "|}" and text[found.end() : found.end() + 1] == "}" and stack[-1][0] == "{{":
            continue  # {{a|}}: the template's end, not a table's
        if not any(kind == opened for kind, _ in stack[-8:]):
            if mark in ("|}", "}-"):
                continue  # plain characters
            stack[-1][1].append(text[position : found.start()])
            position = found.end()
            continue
        stack[-1][1].append(text[position : found.start()])
        position = found.end()
        while stack[-1][0] != opened:
            _drop_open(stack)
        _, parts = stack.pop()
        stack[-1][1].append(_RESOLVE[opened]("".join(parts)))
    stack[-1][1].append(text[position:])
    while len(stack) > 1:
        _drop_open(stack)
    return "".join(stack[0][1])


def _drop_open(stack: list[tuple[str, list[str]]]) -> None:
    kind, parts = stack.pop()
    text = "".join(parts)
    if kind in ("{{", "{|"):
        _, gap, rest = text.partition("\n\n")
        text = gap + rest
    stack[-1][1].append(text)


def _template(inside: str) -> str:
    parts = [part.strip() for part in inside.split("|")]
    name = parts[0].lower().replace("_", " ")
    if name.startswith("lang-") and len(parts) > 1:
        return parts[1]
    which = _KEPT_TEMPLATES.get(name)
    if which is None:
        return ""
    plain = [part for part in parts[1:] if not re.match(r"[\w -]{1,20}=", part)]
    return plain[which - 1] if len(plain) >= which else ""


def _link(inside: str) -> str:
    target, _, shown = inside.partition("|")
    namespace = target.lstrip(": ").partition(":")[0].strip().lower() if ":" in target else ""
    if namespace in _NAMESPACES and not target.lstrip().startswith(":"):
        return ""
    if namespace and not shown and re.fullmatch(r"[a-z]{2,3}(?:-[a-z]{2,8})?", namespace) and ": " not in target:
        return ""  # the page in another language
    shown = shown.rpartition("|")[2] if namespace in _NAMESPACES else shown
    if shown:
        return shown
    target = target.strip().lstrip(":")
    return target.partition("#")[0] or target.lstrip("#")


def _conversion(inside: str) -> str:
    """-{zh-hans:计算机;zh-hant:電腦;}-: the simplified side, else the first; -{as it is}- unchanged."""
    flags, bar, rest = inside.partition("|")
    if bar and len(flags) <= 12 and re.fullmatch(r"[A-Za-z;\- ]*", flags):
        if flags.strip() in ("H", "-", "T"):  # rules without text, and the page's title
            return ""
        inside = rest
    found: dict[str, str] = {}
    for piece in inside.split(";"):
        code, colon, value = piece.partition(":")
        if colon and re.fullmatch(r"\s*zh(?:-[a-z]{2,5})?\s*", code):
            found[code.strip()] = value.strip()
    if not found:
        return inside
    return next((found[code] for code in _CONVERSIONS if code in found), next(iter(found.values())))


_RESOLVE = {"{{": _template, "{|": lambda inside: "", "[[": _link, "-{": _conversion}


def _level(line: str) -> int:
    """Of a Markdown heading its level, else 0."""
    return len(found[1]) if (found := re.match(r"(#{2,6}) ", line)) else 0


def _lines(text: str) -> list[str]:
    kept: list[str] = []
    skip_below = 0  # level of an end section that is being left out
    for raw in text.split("\n"):
        line = raw.strip()
        if heading := _HEADING.match(line):
            level, title = len(heading[1]), heading[2].strip()
            if skip_below and level > skip_below:
                continue
            skip_below = level if title.lower() in _END_SECTIONS else 0
            if not skip_below:
                while kept and (not kept[-1] or _level(kept[-1]) >= max(2, level)):
                    kept.pop()  # blank lines, and a section of which nothing is left
                kept += ["", f"{'#' * max(2, level)} {title}"]
            continue
        if skip_below or line.startswith(("|", "!")):  # a table row whose table lost its mark
            continue
        line = _LIST.sub(lambda found: "- " if found[1][-1] in "*#" else "", line)
        line = _SPACES.sub(" ", _SPACE_BEFORE.sub(r"\1", _EMPTY_BRACKETS.sub("", line))).strip()
        line = _DOUBLE_COMMA.sub("", line)  # where a template stood
        kept.append("" if line in ("-", "*", ";", ":") else line)
    while kept and (not kept[-1] or _level(kept[-1])):
        kept.pop()
    return kept
