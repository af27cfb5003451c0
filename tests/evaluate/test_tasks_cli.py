"""`headwater eval` with tasks, as a person runs it: killed and gone on with, on a server, on a file of solutions."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.core.errors import InputError, UserError
from headwater.engine import SamplingParams
from headwater.evaluate.backends import LocalBackend
from headwater.evaluate.server_backend import ServerBackend
from headwater.evaluate.tasks import load_task, run_task
from tests.conftest import Killer, RunCli, cli_command

from ..serve.tiny import Server, running
from .models import OWN_TASK, RIVERS, tiny_folder, write


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tiny (a model), data, rivers.yaml."""
    root = tmp_path_factory.mktemp("world")
    tiny_folder(root)
    write(
        root / "data" / "rivers.jsonl",
        [{**row, "country": f"{row['country']} {n}"} for n in range(100) for row in RIVERS],
    )
    (root / "rivers.yaml").write_text(OWN_TASK.replace("group: country\n", ""))
    return root


@pytest.fixture(scope="module")
def server(world: Path) -> Iterator[Server]:
    with running(world / "tiny", max_concurrent=8) as served:
        yield served


def test_a_killed_evaluation_goes_on_and_finds_what_an_undisturbed_one_finds(
    world: Path, tmp_path: Path, run_cli: RunCli, killer: Killer
) -> None:
    arguments = ["eval", "tiny", "--tasks", "rivers.yaml", "--data", "data", "--quiet"]
    process = killer.start([*cli_command(), *arguments, "--out", tmp_path / "killed"], cwd=world)
    records = tmp_path / "killed" / "records" / "rivers.jsonl"
    end = time.monotonic() + 100
    while (
        process.poll() is None and time.monotonic() < end and not (records.exists() and records.stat().st_size > 9000)
    ):
        time.sleep(0.01)
    killer.kill(process)
    before = len(records.read_text().splitlines())
    assert before > 1
    again = run_cli(*arguments, "--out", tmp_path / "killed", "--json", cwd=world)
    whole = run_cli(*arguments, "--out", tmp_path / "whole", "--json", cwd=world)
    mine, theirs = again.json["tasks"]["rivers"], whole.json["tasks"]["rivers"]
    assert mine["metrics"] == theirs["metrics"]
    assert mine["fingerprint"] == theirs["fingerprint"]
    assert records.read_text() == (tmp_path / "whole" / "records" / "rivers.jsonl").read_text()
    assert {path.name for path in (tmp_path / "whole").iterdir()} == {
        "records",
        "results.html",
        "results.json",
        "results.md",
    }
    assert json.loads((tmp_path / "whole" / "results.json").read_text())["tasks"]["rivers"]["items"] == 600


def test_a_server_finds_the_likelihoods_that_the_model_here_finds(world: Path, server: Server) -> None:
    spec, local = load_task(world / "rivers.yaml"), LocalBackend.open(world / "tiny", device="cpu")
    served = ServerBackend.connect(server.root)
    here = run_task(spec, local, folder=world / "data", limit=12)
    there = run_task(spec, served, folder=world / "data", limit=12)
    for mine, theirs in zip(here.records, there.records, strict=True):
        assert theirs["nats"] == pytest.approx(mine["nats"], abs=1e-4)
        assert theirs["greedy"] == mine["greedy"]
        assert theirs["picks"] == mine["picks"]
    texts = ["The river runs to the sea.", "半亩方塘一鉴开。"]
    for mine, theirs in zip(local.texts(texts), served.texts(texts), strict=True):
        assert theirs.nats == pytest.approx(mine.nats, abs=1e-3)


def test_a_server_writes_what_the_model_here_writes(world: Path, server: Server) -> None:
    local, served = LocalBackend.open(world / "tiny", device="cpu"), ServerBackend.connect(server.url)
    prompts = ["The river", "千里之行"]
    asked = SamplingParams(temperature=0.0, seed=0, stop=("。", "."), max_tokens=12)
    assert [list(t) for t in served.complete(prompts, asked)] == [list(t) for t in local.complete(prompts, asked)]
    with pytest.raises(UserError, match="OpenAI"):
        served.complete(prompts, SamplingParams(top_k=3))


def test_what_a_server_refuses_is_said_of_the_item_and_what_is_not_there_at_once(server: Server) -> None:
    served = ServerBackend.connect(server.root)
    with pytest.raises(InputError, match="refuses"):
        served.likelihoods([("word " * 400, " word")])
    with pytest.raises(InputError, match="chat endpoint"):
        ServerBackend.connect(server.root, chat=True).likelihoods([("a", " b")])
    with pytest.raises(UserError, match="serves no model"):
        ServerBackend.connect(server.root, "another")
    with pytest.raises(UserError, match="cannot be reached"):
        ServerBackend.connect("http://127.0.0.1:9")


def test_solutions_of_a_file_are_scored_and_a_bad_file_is_refused(tmp_path: Path, run_cli: RunCli) -> None:
    problem = {"prompt": "def add(a, b):\n", "test": "def check(f):\n    assert f(1, 2) == 3\n", "entry_point": "add"}
    write(tmp_path / "data" / "HumanEval.jsonl", [{**problem, "task_id": f"HumanEval/{n}"} for n in range(2)])
    good = [{"task_id": f"HumanEval/{n}", "completion": "    return a + b\n"} for n in range(2)]
    wrong = {"task_id": "HumanEval/1", "completion": "    return 0\n"}
    write(tmp_path / "samples.jsonl", [*good, wrong])
    arguments = ["eval", "humaneval", "--samples", "samples.jsonl", "--data", "data", "--json"]
    found = run_cli(*arguments).json
    assert found["pass@1"] == pytest.approx(0.75)
    assert found["sandbox"] in ("full", "reduced")
    assert found["items"][1]["passed"] == [True, False]
    write(tmp_path / "samples.jsonl", good[:1])
    assert "have no sample" in run_cli(*arguments, code=2).json["error"]["what"]
    write(tmp_path / "samples.jsonl", [*good, {"task_id": "HumanEval/1"}])
    assert run_cli(*arguments, code=2).json["error"]["where"].endswith(":3")
    assert run_cli(*arguments, "--sandbox-level", "lax", code=2).json["error"]["where"] == "--sandbox-level"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--limit", "3"], "goes with --suite or --tasks"),
        (["--tasks", "piqqa"], "did you mean piqa"),
        (["--suite", "nothing"], "no suite"),
        (["--tasks", "piqa", "--chat"], "goes with a server"),
        (["--tasks", "piqa", "--data", "nowhere"], "no such file"),
    ],
)
def test_a_mistaken_option_is_refused_with_the_mend(
    world: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    from headwater.cli.main import run_command

    monkeypatch.chdir(world)
    assert run_command(["eval", "tiny", *arguments]) == 2
    assert said in capsys.readouterr().err
