"""The branch of a page that holds its article, found by where the sentences are; all else is cut off the tree.

In: a parsed page. Out: the same tree, changed in place. Sentences are text with sentence marks of Chinese or Western
scripts outside links; menus, lists of headlines and copyright lines have none. Comments, recommendations and the like
have sentences too: they are known by the names of their classes, and go unless they hold most of the page.

    cut_to_article(HTMLTree.parse(source))      # True: what is left is the article
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from resiliparse.parse.html import HTMLTree, NodeType, traverse_dom

MIN_SENTENCE_CHARACTERS = 60
"""With less in sentences than this, a page is no article and stays whole."""

MOST_OF_BRANCH = 0.75
"""The article is in the branch that holds this share of its parent's sentences; where none does, it is the parent."""

MOST_OF_LAYOUT = 0.97

MOST_OF_EXTRA = 0.4
"""What is called a recommendation, a share button or the like goes if it holds at most this share of all sentences."""

LEAST_BESIDE_COMMENTS = 200
"""Comments go, however many there are, if so many characters of sentences are left; a forum has nothing else."""

_SENTENCE = re.compile(r"[。！？；，：、]|[.!?,;:](?=[\s\"'”’)]|$)")
_COMMENTS = re.compile(r"comment|cmt(?![a-z])|(?:^|[-_\s])tie[-_A-Z]|repl(?:y|ies)(?![a-z])|discuss", re.IGNORECASE)
_EXTRA = re.compile(
    r"recommend|relat(?:ed|e(?![a-z]))|xg(?:xw|wz|tj)|tuijian|"
    r"similar|popular|rank|(?:side|right|left)[-_]?bar|(?:^|[-_\s])wx[-_]|[-_]wx|weixin|(?:^|[-_\s])side[-_]|share|social|disclaimer|statement|copyright|foot(?:er)?\b|"
    r"bread-?crumb|toolbar|log-?in|popup|modal|subscri|newsletter|promo|sponsor|advert|qr-?code|next[-_]post|"
    r"post-?tags|editor\b|show_author|ep-source|otitle|hide_word",
    re.IGNORECASE,
)
_NO_TEXT = frozenset(["script", "style", "noscript", "template", "svg", "head", "select", "button", "textarea"])
_NOT_MAIN = frozenset(["nav", "aside", "footer", "form"])
_TITLES = frozenset(f"h{level}" for level in range(1, 7))
_INLINE = frozenset(["a", "abbr", "b", "cite", "code", "em", "font", "i", "mark", "q", "small", "span", "strong", "u"])
_NEVER_EXTRA = frozenset(["html", "body", "main", "article"])
_NO_ARTICLE = _INLINE | _TITLES | {"p", "blockquote", "pre", "dl", "dt", "figure"}
"""Parts of an article, never all of it."""
_LAYOUT = frozenset(["ul", "ol", "li", "table", "tbody", "tr", "td"])
"""Parts of an article too, but some pages are laid out with them: they must hold `MOST_OF_LAYOUT`."""


@dataclass(slots=True)
class _Branch:
    node: Any
    tag: str
    parent: _Branch | None
    sentences: int = 0  # characters in it and below
    quiet: bool = False  # a link, or no text
    children: list[_Branch] = field(default_factory=list)


class _Walk:
    """Measures every element. The depth says what has ended: empty elements have no end of their own."""

    def __init__(self) -> None:
        self.root = _Branch(None, "", None)
        self._open = [self.root]

    def start(self, context: Any) -> None:
        node = context.node
        while len(self._open) > context.depth + 1:
            self.close()
        above = self._open[-1]
        kind = node.type
        if kind == NodeType.TEXT:
            if not above.quiet:
                text = node.value or ""
                if above.tag == "pre" or (len(text) > 8 and _SENTENCE.search(text)):
                    above.sentences += len(text.strip())
        elif kind == NodeType.ELEMENT:
            tag = node.tag
            branch = _Branch(node, tag, above)
            branch.quiet = above.quiet or tag == "a" or tag in _NO_TEXT or tag in _NOT_MAIN
            if not branch.quiet:
                above.children.append(branch)
            self._open.append(branch)

    def close(self) -> None:
        branch = self._open.pop()
        if not branch.quiet and branch.parent is not None:
            branch.parent.sentences += branch.sentences

    def finish(self) -> None:
        while self._open:
            self.close()


def cut_to_article(tree: HTMLTree) -> int:
    """Cut everything off but the branch with the article. Returns how many characters of sentences it has; 0, and
    nothing changed, if the page has too few."""
    if tree.body is None:
        return 0
    walk = _Walk()
    traverse_dom(tree.body, walk.start, None, None, False)
    walk.finish()
    total = walk.root.sentences
    if total < MIN_SENTENCE_CHARACTERS:
        return 0
    extra: list[Any] = []
    _drop_extra(walk.root, total, extra)
    branch = walk.root
    while True:
        best = max(branch.children, key=lambda child: child.sentences, default=None)
        if best is None or best.tag in _NO_ARTICLE or _has_like(branch, best):
            break
        if best.sentences < (MOST_OF_LAYOUT if best.tag in _LAYOUT else MOST_OF_BRANCH) * branch.sentences:
            break
        branch = best
    for node in extra:
        node.decompose()
    keep = branch.node
    while keep is not None and keep.tag not in ("body", "html"):
        parent = keep.parent
        for sibling in _siblings(keep):
            sibling.decompose()
        keep = parent
    return branch.sentences


def _has_like(branch: _Branch, best: _Branch) -> bool:
    """Whether there is another of its kind: then both are parts of one article, or articles in a list."""
    name = best.node.getattr("class")
    return bool(name) and any(
        child is not best
        and child.sentences >= MIN_SENTENCE_CHARACTERS
        and child.tag == best.tag
        and child.node.getattr("class") == name
        for child in branch.children
    )


def _siblings(node: Any) -> list[Any]:
    found = []
    for step in ("prev", "next"):
        other = getattr(node, step)
        while other is not None:
            found.append(other)
            other = getattr(other, step)
    return found


def _drop_extra(branch: _Branch, total: int, extra: list[Any]) -> None:
    """Take elements that are called extra, and what they hold, out of the count; adds them to `extra`."""
    kept = []
    for child in branch.children:
        if child.tag not in _NEVER_EXTRA and _is_extra(child, total):
            extra.append(child.node)
            lost, above = child.sentences, child.parent
            while above is not None:
                above.sentences -= lost
                above = above.parent
        else:
            _drop_extra(child, total, extra)
            kept.append(child)
    branch.children = kept


def _is_extra(branch: _Branch, total: int) -> bool:
    names = f"{branch.node.getattr('class') or ''} {branch.node.getattr('id') or ''}"
    if len(names) == 1:
        return False
    if branch.tag == "p" and branch.sentences > MIN_SENTENCE_CHARACTERS:
        return False
    if branch.sentences <= MOST_OF_EXTRA * total and _EXTRA.search(names):
        return True
    return total - branch.sentences >= LEAST_BESIDE_COMMENTS and _COMMENTS.search(names) is not None
