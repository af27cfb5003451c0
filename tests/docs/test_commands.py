"""Every command and every Python block of the documentation, run for real on small made inputs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import README_ZH, SHELL, blocks, commands, documentation, name_of
from tests.docs.place import FINISHED, make_inputs
from tests.docs.runner import PageRunner

EXCLUDED = {
    "make quickstart": "installs the project from the network and trains for minutes",
    "make test": "installs the project from the network, and is what runs this test",
    ". .venv/bin/activate": "the environment of the tests has another place",
}
"""Commands that are not run here, and why."""

SMALLER = {
    "tokenizer.vocab_size=8192": "tokenizer.vocab_size=768",
    "model.hidden_size=256": "model.hidden_size=32",
    "train.seq_len=256": "train.seq_len=64",
    "train.tokens=1e7": "train.tokens=1e4",
    "--ranks 4096 --report": "--ranks 4096 --rank 512 --report",  # one of eight stages
    "--layout ": "--set model.num_hidden_layers=4 --set train.global_batch=16 --layout ",  # what the real recipe has
}
"""Figures of the pages that would take minutes or more text, and what they become here."""

STARTS_WITH = {
    "docs/chaos.md": [],
    "docs/curate.md": [],
    "docs/deduplicate.md": ["clean"],
    "docs/evaluate.md": ["packed", "run", "model"],
    "docs/plan.md": ["model"],
    "docs/prometheus.md": ["packed"],
    "docs/recipes.md": [],
    "docs/safety.md": ["run", "model"],
    "docs/serve.md": ["run", "model"],
    "docs/tokenize.md": ["clean", "packed", "run"],
    "docs/train.md": ["packed"],
    "docs/train-on-a-cluster.md": [],
    "docs/watch.md": ["packed", "run"],
    "README.md": [],
}
"""What the reader of a page has made before, by pages that come earlier."""


def runnable() -> list[Path]:
    """Pages with something to run. README.zh.md has the commands of README.md, which another test holds."""
    pages = [page for page in documentation() if page != README_ZH]
    return [page for page in pages if any(block.language in (*SHELL, "python") for block in blocks(page))]


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reader's folder, with a finished quickstart and what the pages make, built once."""
    from headwater.cli.main import run_command

    folder = tmp_path_factory.mktemp("reader")
    make_inputs(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for line in FINISHED:
            assert run_command([*line.split(), "--quiet"]) == 0, line
    return folder


@pytest.fixture
def reader(prepared: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A copy of that folder as the reader of the page (the test's parameter) has it."""
    page = request.node.callspec.params["page"]
    folder, has = tmp_path / "reader", STARTS_WITH[name_of(page)]
    later = {"clean", "packed", "run", "model"} - set(has)
    shutil.copytree(prepared, folder, ignore=lambda where, _: later if Path(where) == prepared else ())
    yield folder
    shutil.rmtree(folder)


SLOW = {"docs/plan.md": 900}
"""Seconds a page may take that measures the machine, which others may use too."""


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.timeout(SLOW.get(name_of(page), 300))) for page in runnable()],
    ids=[name_of(page) for page in runnable()],
)
def test_what_a_page_shows_works(
    page: Path, reader: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    asks = any(command.text.startswith("curl ") for block in blocks(page) for command in commands(block))
    if asks and shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    PageRunner(reader, monkeypatch, capfd, smaller=SMALLER, excluded=EXCLUDED).run(page)


def test_no_exception_is_stale() -> None:
    texts = [command.text for page in runnable() for block in blocks(page) for command in commands(block)]
    assert set(EXCLUDED) <= set(texts)
    assert all(any(was in text for text in texts) for was in SMALLER)
    assert {name_of(page) for page in runnable()} == set(STARTS_WITH)
