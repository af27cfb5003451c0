r"""LaTeX to plain text: comments, macros and bibliography go, macros that stand for text or formulas are put in their
place, equations stay as they are written.

    latex_to_text({"main.tex": source})         # LatexText(text="# Title\n\n...", title="Title")
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from headwater.curate.readers.latex_macros import argument, expand_macros, option
from headwater.curate.readers.paired import replace_paired

VERSION = "latex-2"
_DEEPEST_INPUT = 10

_COMMENT = re.compile(r"(?<!\\)((?:\\\\)*)%[^\n]*(?:\n[ \t]*(?=\S)|(?=\n)|\Z)")
_DROPPED_BLOCKS = re.compile(r"\\iffalse\b|\\begin\{comment\}")
_INPUT = re.compile(r"\\(?:input|include|subfile)\s*\{([^{}]+)\}|\\input\s+([\w./-]+)")
_BODY = re.compile(r"\\begin\{document\}(.*?)(?:\\end\{document\}|\Z)", re.DOTALL)
_MATH_NAMES = "equation|align|alignat|gather|multline|eqnarray|displaymath|math|flalign|subequations|dmath"
_MATH = re.compile(rf"\\begin\{{((?:{_MATH_NAMES})\*?)\}}|\\[\[(]|\\.|\$\$|\$(?:[^$\\]|\\.){{1,2000}}\$", re.DOTALL)
_MATH_ENDS = {"\\[": r"\\\]", "\\(": r"\\\)", "$$": r"\$\$"}
_VERBATIM = re.compile(r"\\begin\{((?:verbatim|lstlisting|minted|Verbatim)\*?)\}")
_NUMBERING = re.compile(r"\\(?:label|tag)\*?\{[^{}]*\}|\\(?:nonumber|notag)\b")
_DROPPED_ENVIRONMENTS = frozenset(
    ["thebibliography", "figure", "table", "tabular", "tabularx", "longtable", "tikzpicture", "picture",
     "wrapfigure", "algorithm", "algorithmic", "algorithm2e", "filecontents", "CCSXML", "keywords",
     "sidewaystable", "sidewaysfigure", "acknowledgments", "acknowledgements"]
)  # fmt: skip
_ENVIRONMENT = re.compile(r"\\(begin|end)\s*\{([A-Za-z]+)\*?\}")
_SECTIONS = {"part": 2, "chapter": 2, "section": 2, "subsection": 3, "subsubsection": 4, "paragraph": 5}
_DROPPED_COMMANDS = frozenset(
    ["cite", "citep", "citet", "citeauthor", "citeyear", "citealp", "citealt", "Cite", "Citet", "Citep",
     "parencite", "textcite", "footcite", "nocite", "autocite", "label", "ref", "eqref", "autoref", "cref",
     "Cref", "pageref", "nameref", "bibliography", "bibliographystyle", "addbibresource", "printbibliography",
     "includegraphics", "vspace", "hspace", "usepackage", "documentclass", "documentstyle",
     "pagestyle", "thispagestyle", "setlength", "addtolength", "setcounter", "addtocounter", "newtheorem",
     "theoremstyle", "thanks", "footnote", "footnotemark", "footnotetext", "index", "glossary", "affil",
     "affiliation", "address", "email", "institute", "author", "date", "maketitle", "tableofcontents",
     "listoffigures", "listoftables", "appendix", "newpage", "clearpage", "pagebreak", "noindent", "indent",
     "centering", "raggedright", "bigskip", "medskip", "smallskip", "hypersetup", "definecolor", "color",
     "graphicspath", "input", "include", "url", "orcid", "keywords", "ccsdesc", "authornote", "icmltitle",
     "markboth", "IEEEpeerreviewmaketitle", "linethickness", "hfill", "vfill", "protect", "begingroup", "endgroup",
     "relax", "par", "linebreak", "nolinebreak"]
)  # fmt: skip
_KEPT_WORDS = {"LaTeX": "LaTeX", "TeX": "TeX", "ldots": "…", "dots": "…", "textellipsis": "…", "S": "§", "P": "¶",
               "copyright": "©", "textregistered": "®", "texttrademark": "™", "pounds": "£", "ss": "ß", "o": "ø",
               "O": "Ø", "ae": "æ", "AE": "Æ", "oe": "œ", "OE": "Œ", "aa": "å", "AA": "Å", "l": "ł", "L": "Ł", "i": "ı",
               "textbackslash": "\\", "textasciitilde": "~", "textemdash": "—", "textendash": "–", "quad": " ",
               "qquad": " ", "par": "\n\n", "newline": "\n", "textbar": "|", "slash": "/", "textquotesingle": "'",
               "ie": "i.e.", "eg": "e.g."}  # fmt: skip
_ACCENTS = {"'": "\u0301", "`": "\u0300", "^": "\u0302", '"': "\u0308", "~": "\u0303", "=": "\u0304", ".": "\u0307",
            "u": "\u0306", "v": "\u030c", "H": "\u030b", "c": "\u0327", "k": "\u0328", "r": "\u030a", "d": "\u0323",
            "b": "\u0331"}  # fmt: skip
_ACCENT = re.compile(
    r"""\\(?:(['`^"~=.])\s*|([uvHckrdb])(?:\s+|(?=\{)))(?:\{\s*(\\?[A-Za-z])\s*\}|(\\?[A-Za-z])(?![A-Za-z]))"""
    r"""|\\(['`^"~=.])(?:\{\s*(\\?[A-Za-z])\s*\}|(\\?[A-Za-z]))"""
)
_COMMAND = re.compile(r"\\([A-Za-z@]+)\*?|\\(.)", re.DOTALL)
_LENGTH = r"[-+]?(?:\d[\d.]*|\.\d+) ?(?:true ?)?(?:pt|cm|mm|in|em|ex|pc|bp|sp|dd|cc|fil+)(?![A-Za-z])"
_SKIP = re.compile(rf"\s{{0,9}}(?:{_LENGTH}(?: ?(?:plus|minus) ?{_LENGTH}){{0,2}})? ?")
_SKIPS = frozenset(["hskip", "vskip", "hglue", "vglue", "kern", "raise", "lower", "moveleft", "moveright"])
_ASSIGNED = re.compile(
    rf"\s{{0,9}}=\s{{0,9}}(?:{_LENGTH}(?: ?(?:plus|minus) ?{_LENGTH}){{0,2}}|[-+]?\d+|[-+]?[\d.]*\\[A-Za-z@]+) ?"
)
"""What TeX's registers are set to, as in \\hoffset=-6.5cm, \\looseness=-3, \\parindent=0.5\\textwidth."""
_PLACES = re.compile(r"(?:\s{0,9}\([-\d.,\s]{1,40}\)){0,2}")  # of \put, \multiput, \line, \vector
_SPACES = re.compile(r"[ \t]{2,}|\t")
_EMPTY_BRACKETS = re.compile(r" ?(?:\([ \n]{0,2}[,;]{0,9}[ \n]{0,2}\)|\[[ \n]{0,2}[,;]{0,9}[ \n]{0,2}\])")
_HELD = re.compile("\ue000([0-9]+)\ue001")


@dataclass(frozen=True, slots=True)
class LatexText:
    """The text of a paper, its title, and the file it begins in."""

    text: str
    title: str
    main: str


def latex_to_text(files: Mapping[str, str]) -> LatexText:
    """A paper's `.tex` files, by name, to one text; "" if none of them is a document."""
    main = main_file(files)
    if not main:
        return LatexText("", "", "")
    whole = _with_inputs(files, main, 0, set()).replace("\ue000", "").replace("\ue001", "")
    whole = replace_paired(
        whole,
        _DROPPED_BLOCKS,
        lambda found: r"\\fi\b" if found[0] == r"\iffalse" else r"\\end\{comment\}",
        lambda found, inside: "",
    )
    whole = expand_macros(whole)
    title = _plain(_first(whole, "title"))
    body = found[1] if (found := _BODY.search(whole)) else _after_preamble(whole)
    abstract = "" if "\\begin{abstract}" in body else _first(whole, "abstract")
    text = _plain((f"\\section{{Abstract}}\n{abstract}\n\n" if abstract else "") + body)
    heading = f"# {title}\n\n" if title and not text.startswith(f"# {title}") else ""
    return LatexText(heading + text if text else "", title, main)


def main_file(files: Mapping[str, str]) -> str:
    """The file a paper begins in: with \\documentclass or \\documentstyle and \\begin{document}, the shortest path
    first; a plain TeX file that is alone; else ""."""
    begins = [name for name, text in files.items() if re.search(r"^[^%\n]*\\document(?:class|style)\b", text, re.M)]
    whole = [name for name in begins if "\\begin{document}" in files[name]] or begins
    if not whole and len(files) == 1:
        whole = [
            name for name, text in files.items() if re.search(r"\\(?:section|input|bye|title|magnification)\b", text)
        ]
    return min(whole, key=lambda name: (name.count("/"), "supp" in name.lower(), -len(files[name]), name), default="")


def _with_inputs(files: Mapping[str, str], name: str, depth: int, seen: set[str]) -> str:
    """A file without comments, with what it takes in; each file once, so that a loop ends."""
    seen.add(name)
    folder = PurePosixPath(name).parent

    def included(found: re.Match[str]) -> str:
        wanted = (found[1] or found[2]).strip().removeprefix("./")
        for place in (wanted, f"{wanted}.tex", str(folder / wanted), str(folder / f"{wanted}.tex")):
            if place in files and place not in seen and depth < _DEEPEST_INPUT:
                return _with_inputs(files, place, depth + 1, seen)
        return ""

    return _INPUT.sub(included, _COMMENT.sub(r"\1", files[name]))


def _after_preamble(text: str) -> str:
    """The body of a file without \\begin{document}: from its first section or title on."""
    found = re.search(r"\\(?:section|title|chapter)\b", text)
    return text[found.start() :] if found else text


def _first(text: str, command: str) -> str:
    found = re.search(rf"\\{command}\s*(?=[\[{{])", text)
    if found is None:
        return ""
    value = argument(text, option(text, found.end()))
    return value[0] if value else ""


def _plain(text: str) -> str:
    held: list[str] = []

    def hold(kept: str) -> str:
        held.append(kept)
        return f"\ue000{len(held) - 1}\ue001"

    text = replace_paired(
        text, _VERBATIM, _end_of_environment, lambda found, inside: hold("\n```\n" + inside.strip("\n") + "\n```\n")
    )
    text = _without_environments(text)
    text = replace_paired(text, _MATH, _end_of_math, lambda found, inside: _formula(found, inside, hold))
    text = _ACCENT.sub(_accented, text)
    text = _commands(text)
    text = re.sub(r"(?<!\\)[{}]", "", text)
    text = text.replace("\ue002", "{").replace("\ue003", "}")
    text = text.replace("~", " ").replace("---", "—").replace("--", "–").replace("``", "“").replace("''", "”")
    text = _SPACES.sub(" ", text)  # first of all: what follows is bounded by it
    text = _EMPTY_BRACKETS.sub("", text)  # around what was a citation
    text = re.sub(r" ([,.;:!?)])", r"\1", text)
    text = re.sub(r"(?<=[^\n])\n(?=[^\n#-])", " ", re.sub(r" ?\n ?", "\n", text))  # lines of a paragraph
    text = _SPACES.sub(" ", text)
    text = _HELD.sub(lambda found: held[int(found[1])], text)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def _end_of_environment(found: re.Match[str]) -> str:
    return rf"\\end\{{{re.escape(found[1])}\}}"


def _end_of_math(found: re.Match[str]) -> str:
    return _end_of_environment(found) if found[1] else _MATH_ENDS.get(found[0], "")


def _formula(found: re.Match[str], inside: str, hold: Callable[[str], str]) -> str:
    """A formula as it is written, less its numbers; `\\\\` and other escapes between formulas are no formula."""
    if not found[1] and found[0] not in _MATH_ENDS:
        return hold(found[0]) if found[0].startswith("$") else found[0]
    end = f"\\end{{{found[1]}}}" if found[1] else {"\\[": "\\]", "\\(": "\\)", "$$": "$$"}[found[0]]
    held = hold(_NUMBERING.sub("", found[0] + inside + end))
    return f"\n\n{held}\n\n" if found[1] else held


def _accented(found: re.Match[str]) -> str:
    mark = found[1] or found[2] or found[5]
    letter = (found[3] or found[4] or found[6] or found[7]).lstrip("\\")
    return unicodedata.normalize("NFC", letter + _ACCENTS[mark])


def _without_environments(text: str) -> str:
    """Leave out figures, tables, bibliographies, nested ones with them; take off the marks of other environments."""
    kept: list[str] = []
    inside: list[str] = []  # dropped environments that are open
    position = 0
    for found in _ENVIRONMENT.finditer(text):
        begins, name = found[1] == "begin", found[2]
        if not inside:
            math = re.fullmatch(_MATH_NAMES, name)
            kept.append(text[position : found.end()] if math else text[position : found.start()])
        position = found.end()
        if name in _DROPPED_ENVIRONMENTS:
            if begins:
                inside.append(name)
            elif name in inside:
                del inside[inside.index(name) :]
        elif not inside and begins and name == "abstract":
            kept.append("\\section{Abstract}\n")
        elif not inside and begins and not re.fullmatch(_MATH_NAMES, name):
            position = option(text, position)
            kept.append("\n")
    if not inside:
        kept.append(text[position:])
    return "".join(kept)


def _commands(text: str) -> str:
    """Sectioning to headings, fonts to their text, references and layout to nothing, escapes to their character."""
    kept: list[str] = []
    position = 0
    while found := _COMMAND.search(text, position):
        kept.append(text[position : found.start()])
        position = found.end()
        name = found[1]
        if name is None:
            sign = found[2]
            kept.append({"\\": "\n", "{": "\ue002", "}": "\ue003", " ": " ", ",": " ", ";": " ", "\n": " "}.get(
                sign, sign if sign in "%&_#$" else ""))  # fmt: skip
            if sign == "\\":
                position = option(text, position)
            continue
        if name in _SECTIONS:
            value = argument(text, option(text, position))
            if value:
                kept.append(f"\n\n{'#' * _SECTIONS[name]} {_line(value[0])}\n\n")
                position = value[1]
        elif name == "item":
            position = option(text, position)
            kept.append("\n- ")
        elif name == "href":
            value = argument(text, position)
            position = value[1] if value else position
        elif name in _KEPT_WORDS:
            kept.append(_KEPT_WORDS[name])
            position += text[position : position + 1] == " "  # which ends the command's name, no more
        elif name in _DROPPED_COMMANDS or name == "title":
            position = _past_arguments(text, position)
        elif name in _SKIPS:
            position = _past(_SKIP, text, position)
        elif name in ("put", "multiput", "line", "vector"):
            position = _past(_PLACES, text, position)
            if name in ("line", "vector"):
                position = _past_arguments(text, position)
        else:  # \emph{x}, \textbf{x}, unknown: the text of the argument stays, options and lengths go
            position = option(text, _past(_ASSIGNED, text, position))
    kept.append(text[position:])
    return "".join(kept)


def _line(text: str) -> str:
    return " ".join(_commands(text).split())


def _past(pattern: re.Pattern[str], text: str, position: int) -> int:
    found = pattern.match(text, position)
    return found.end() if found else position


def _past_arguments(text: str, position: int) -> int:
    """After all [options] and {arguments} that follow at once."""
    while True:
        after = option(text, position)
        if after == position and (value := argument(text, position)):
            after = value[1]
        if after == position:
            return position
        position = after
