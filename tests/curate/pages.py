"""The main text of a page as it was marked by reading it: CSS selectors of its elements, and of what to leave out.

In: HTML and a row of `data/chinese_pages.json`, which has the 30 news pages among the Chinese ones (ids `gne-*`). The
main text is the article with its subheadings and captions, without headline, date, source, editors and what follows.

    marked_text(source, main="#artibody", without=".article-editor")
"""

from __future__ import annotations

from typing import Any

from resiliparse.parse.html import HTMLTree, NodeType

_NO_TEXT = frozenset(["script", "style", "noscript", "template", "svg"])
_INLINE = frozenset(["a", "b", "code", "em", "font", "i", "span", "strong", "sub", "sup", "u"])


def marked_text(source: str, main: str, without: str = "") -> str:
    """Text of the elements that `main` selects, less what `without` selects."""
    document = HTMLTree.parse(source).document
    assert document is not None
    if without:
        for node in document.query_selector_all(without):
            node.decompose()
    return "\n".join(_text(node) for node in document.query_selector_all(main))


def _text(node: Any) -> str:
    if node.type == NodeType.TEXT:
        return node.value or ""
    if node.type != NodeType.ELEMENT or node.tag in _NO_TEXT:
        return ""
    parts = []
    child = node.first_child
    while child is not None:
        parts.append(_text(child))
        child = child.next
    text = "".join(parts)
    return text if node.tag in _INLINE else f" {text} "
