"""The command line without a run: recipes, help, errors, exit codes, `--json`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Call
from tests.conftest import clean_environment, cli_command
from tests.pipeline.conftest import RECIPE, make_corpus

REPOSITORY = Path(__file__).resolve().parents[2]
RECIPES = REPOSITORY / "recipes"


def test_init_writes_a_recipe_that_validates(call: Call, tmp_path: Path) -> None:
    done = call("init", "mine.yaml", "--json")
    assert done.json == {"path": "mine.yaml"}
    assert call("recipe", "validate", "mine.yaml", "--json").json["valid"] is True
    again = call("init", "mine.yaml", code=2)
    assert "exists already" in again.stderr
    call("init", "mine.yaml", "--force")
    call("init")
    assert (tmp_path / "recipe.yaml").is_file()


def test_describe_gives_the_numbers_as_json_and_as_text(call: Call) -> None:
    facts = call("recipe", "describe", RECIPES / "llama-7b.yaml", "--json").json
    assert facts["model"]["parameters"] == 6_738_415_616
    assert facts["train"]["flops"] == pytest.approx(9.2e22, rel=0.01)
    text = call("recipe", "describe", RECIPES / "llama-7b.yaml", "--set", "train.tokens=1e12").stdout
    assert "6,738,415,616 parameters" in text
    assert "1.00T" in text
    assert "16,777,216 tokens (16.8M) an optimizer step" in text


def test_explain_prints_one_field_all_fields_and_suggests(call: Call) -> None:
    one = call("recipe", "explain", "d_model")
    assert one.stdout.startswith("model.hidden_size\n")
    every = call("recipe", "explain", "--json").json["fields"]
    assert len(every) > 150
    assert {"path", "doc", "type", "unit", "default", "kind", "aliases", "used"} <= set(every[0])
    wrong = call("recipe", "explain", "hiden_size", code=2)
    assert "did you mean model.hidden_size?" in wrong.stderr


def test_every_mistake_of_a_recipe_is_in_text_and_json(call: Call, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("train:\n  stpes: 3\nmodel:\n  hidden_size: wide\n")
    text = call("recipe", "validate", "bad.yaml", code=2)
    assert text.stdout == ""
    assert "bad.yaml:2:3: unknown key 'stpes' in train" in text.stderr
    assert "bad.yaml:4:3: model.hidden_size is 'wide'; expected integer >= 1" in text.stderr
    found = call("recipe", "validate", "bad.yaml", "--json", code=2).json
    assert found["exit_code"] == 2
    assert set(found["error"]) == {"what", "where", "mend", "problems"}
    assert [item["field"] for item in found["error"]["problems"]] == ["train.stpes", "model.hidden_size"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rn", "x"], "Did you mean 'run'?"),
        (["run"], "Missing argument"),
        (["run", "a.yaml", "--wrokspace", "x"], "--workspace"),
        (["run", "absent.yaml"], "no such recipe file"),
        (["run", "absent.yaml", "--set", "x"], "no such recipe file"),
        (["recipe", "validate", "."], "this is a folder"),
        (["lineage", "0123456789abcdef"], "there is no path, fingerprint or run"),
        (["status", "--set", "seed=1"], "none is given"),
        (["status", "--verify", "--workspace", "/dev/null"], "a file, not a workspace"),
        (["init", "/dev/null/recipe.yaml"], "cannot be read or written"),
    ],
)
def test_a_users_mistake_exits_with_2_and_json_says_it_too(call: Call, arguments: list[str], message: str) -> None:
    plain = call(*arguments, code=2)
    assert message in plain.stderr
    assert "Traceback" not in plain.stderr
    found = call(*arguments, "--json", code=2).json
    assert message in found["error"]["what"]
    assert found["exit_code"] == 2


def test_a_folder_where_a_file_should_go_is_named_and_not_the_temporary_file(call: Call, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "A quiet morning, and the river runs down to the mill."}\n')
    (tmp_path / "page.html").mkdir()
    call("curate", str(tmp_path / "in.jsonl"), "--out", str(tmp_path / "out"))
    failed = call(
        "curate", "report", str(tmp_path / "out"), "--out", str(tmp_path / "page.html"), "--json", code=2
    ).json
    assert failed["error"]["where"] == str(tmp_path / "page.html")


def test_the_next_command_of_a_status_is_for_the_same_recipe_and_place(call: Call, tmp_path: Path) -> None:
    (tmp_path / "a recipe.yaml").write_text("schema: 1\n")
    said = call("status", tmp_path / "a recipe.yaml", "--set", "seed=7", "--workspace", "w").stdout
    assert f"next: headwater run '{tmp_path}/a recipe.yaml' --set seed=7 --workspace w\n" in said


def test_debug_shows_the_traceback(call: Call) -> None:
    assert "Traceback" in call("run", "absent.yaml", "--debug", code=2).stderr


def test_a_verb_wins_over_a_path_and_a_path_alone_is_explained(call: Call, tmp_path: Path) -> None:
    (tmp_path / "status").mkdir()
    assert call("status", "--json").json == {"workspace": "workspace", "artifacts": [], "runs": []}
    wrong = call("./status", code=2)
    assert "'./status' is a path, not a verb" in wrong.stderr
    assert "headwater run ./status" in wrong.stderr


def test_a_sub_verb_wins_over_a_path_and_a_dot_names_the_path(call: Call, tmp_path: Path) -> None:
    (tmp_path / "dedup").mkdir()
    (tmp_path / "dedup" / "rows.jsonl").write_text('{"text": "The river runs down from the hills to the old mill."}\n')
    assert "Missing argument" in call("curate", "dedup", code=2).stderr
    assert call("curate", "./dedup", "--out", "clean", "--json").json["out"]["documents"] == 1


def test_running_a_recipe_for_a_cluster_says_what_is_missing(call: Call) -> None:
    found = call("run", RECIPES / "gpt3-175b-3d.yaml", "--json", code=2).json
    text = json.dumps(found)
    assert "no file is there for web" in text
    assert "4,096 ranks" in text
    assert "headwater launch" in text


def test_version_and_help_name_every_verb(call: Call) -> None:
    assert call("--version").stdout.startswith("headwater ")
    text = call("--help").stdout
    for verb in (
        "run", "status", "lineage", "curate", "tokenize", "train", "trace", "eval", "export", "generate", "serve",
        "init", "recipe",
    ):  # fmt: skip
        assert f" {verb} " in text
    assert "no verb is given" in call(code=2).stderr


def test_a_closed_pipe_is_no_error() -> None:
    done = subprocess.run(
        f"{cli_command()[0]} recipe explain | head -n 1", shell=True, capture_output=True, text=True,
        env=clean_environment(), check=False,
    )  # fmt: skip
    assert done.stdout.count("\n") == 1
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_a_damaged_result_exits_with_1_and_says_how_to_rebuild_it(call: Call, tmp_path: Path) -> None:
    make_corpus(tmp_path / "corpus")
    (tmp_path / "small.yaml").write_text(RECIPE.format(root=tmp_path / "corpus"))
    done = call("run", "small.yaml", "--workspace", "w", "--only", "collect", "--json").json
    assert [stage["action"] for stage in done["stages"]] == ["built"]
    (Path(done["stages"][0]["path"]) / "manifest.json").write_text("{}")
    found = call("run", "small.yaml", "--workspace", "w", "--only", "collect", "--json", code=1).json
    assert "cannot read the manifest" in found["error"]["what"]
    assert "run again" in found["error"]["mend"]
