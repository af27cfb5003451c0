"""What every page keeps to: links that lead somewhere, recipes that load, no place or host of one machine."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

from headwater.monitor import METRICS
from headwater.pipeline.schema import loads
from tests.docs.pages import README, README_ZH, REPOSITORY, blocks, commands, documentation, name_of, without_comment

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
ADDRESS = re.compile(r"https?://([^/\s'\"`)]+)")
MACHINE = re.compile(r"(?<![\w./-])/(?:work|home|root|tmp|mnt|opt|usr|Users|var)/|(?<![\w-])(?:\.\./)+shared\b|~/")
REGISTRY = re.compile(r"pypi|pythonhosted|pytorch\.org|huggingface\.co|anaconda\.org|index-url", re.IGNORECASE)
LOOPBACK = re.compile(r"127\.0\.0\.1:\d+")
RECIPE_PAGES = ("README.md", "docs/recipes.md", "docs/curate.md", "docs/train.md")
FIGURES = re.compile(r"<!-- quickstart-figures -->\n(.*?)<!-- /quickstart-figures -->", re.DOTALL)

each_page = pytest.mark.parametrize("page", documentation(), ids=name_of)


@each_page
def test_relative_links_lead_somewhere(page: Path) -> None:
    targets = [target for target in LINK.findall(page.read_text(encoding="utf-8")) if "://" not in target]
    missing = [target for target in targets if not (page.parent / target.partition("#")[0]).exists()]
    assert not missing, f"{name_of(page)} links to {', '.join(missing)}"


@each_page
def test_no_page_names_a_machines_folder_or_a_host(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert not MACHINE.findall(text)
    assert not REGISTRY.findall(text)
    assert all(LOOPBACK.fullmatch(address) for address in ADDRESS.findall(text))


@each_page
def test_headings_are_one_title_and_then_in_order(page: Path) -> None:
    levels, fenced = [], False
    for line in page.read_text(encoding="utf-8").splitlines():
        fenced ^= line.startswith("```")
        if not fenced and (match := re.match(r"(#+) ", line)):
            levels.append(len(match[1]))
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_the_index_names_every_page() -> None:
    index = set(LINK.findall((REPOSITORY / "docs" / "README.md").read_text(encoding="utf-8")))
    pages = {path.relative_to(REPOSITORY / "docs").as_posix() for path in (REPOSITORY / "docs").rglob("*.md")}
    assert pages - {"README.md"} <= index


def test_both_readmes_have_the_same_commands_code_and_figures() -> None:
    def shown(page: Path) -> list[str]:
        code = [block for block in blocks(page) if block.language == "python"]
        lines = [without_comment(line) for block in code for line in block.text.splitlines()]
        return [command.text for block in blocks(page) for command in commands(block)] + lines

    def figures(page: Path) -> list[str]:
        return FIGURES.findall(page.read_text(encoding="utf-8"))

    assert shown(README_ZH) == shown(README)
    assert len(figures(README)) == 1
    assert figures(README_ZH) == figures(README)


@pytest.mark.parametrize("name", RECIPE_PAGES)
def test_recipes_in_a_page_load(name: str) -> None:
    for block in blocks(REPOSITORY / name):
        if block.language == "yaml" and "wrong.yaml" not in block.text:
            loads(block.text if "schema:" in block.text else f"schema: 1\n{block.text}", name=block.place)


def test_every_metric_is_in_the_page_on_watching() -> None:
    page = (REPOSITORY / "docs" / "watch.md").read_text(encoding="utf-8")
    assert not [key for key in METRICS if f"`{key}`" not in page]


def test_every_verb_is_in_the_readme() -> None:
    from headwater.cli.main import app

    names = [command.name for command in app.registered_commands] + [group.name for group in app.registered_groups]
    text = README.read_text(encoding="utf-8")
    assert not [name for name in names if f"| `headwater {name}" not in text]
