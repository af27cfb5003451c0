"""Stage verbs straight on files: each part without the rest, on a corpus of a few hundred kB."""

from __future__ import annotations

import argparse
import io
import json
import signal
import subprocess
import textwrap
import urllib.request
from pathlib import Path

import pytest
import zstandard

from tests.cli.conftest import Call
from tests.conftest import clean_environment, cli_command

SMALL_MODEL = (
    "--set", "model.hidden_size=64", "--set", "model.num_hidden_layers=2", "--set", "model.num_attention_heads=2",
    "--set", "train.steps=12", "--set", "train.seq_len=64", "--set", "train.global_batch=4",
)  # fmt: skip


def command(*arguments: str | Path) -> None:
    from headwater.cli.main import run_command

    assert run_command([str(argument) for argument in arguments]) == 0


def unpacked(path: Path) -> bytes:
    with open(path, "rb") as file:
        return zstandard.ZstdDecompressor().stream_reader(file).read()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus, its tokenizer and dataset (`packed`), a trained run (`run`) and its export (`model`)."""
    folder = tmp_path_factory.mktemp("verbs")
    (folder / "text").mkdir()
    for module in (argparse, json, textwrap):
        (folder / "text" / f"{module.__name__}.txt").write_bytes(Path(str(module.__file__)).read_bytes())
    rows = [{"text": f"第{number}段：山高水长，清风徐来，水波不兴。", "domain": "books"} for number in range(200)]
    (folder / "text" / "zh.jsonl").write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        command("tokenize", "text", "--out", "packed", "--set", "tokenizer.vocab_size=768")
        command("train", "packed", "--out", "run", *SMALL_MODEL)
        command("export", "run", "--out", "model", "--dtype", "bfloat16")
    return folder


def test_tokenize_trains_a_vocabulary_and_packs_with_it(folder: Path, call: Call) -> None:
    index = json.loads((folder / "packed" / "dataset" / "dataset.json").read_text())
    assert index["vocab_size"] == 768
    assert set(index["splits"]["train"]) == {"books", "other"}
    again = call("tokenize", "text", "--out", "again", "--tokenizer", "packed/tokenizer", "--json", cwd=folder).json
    assert "tokenizer" not in again
    assert (folder / "again" / "dataset" / "dataset.json").read_bytes() == (
        folder / "packed" / "dataset" / "dataset.json"
    ).read_bytes()


def test_a_finished_run_trained_again_is_left_as_it_is(folder: Path, call: Call) -> None:
    before = sorted((path, path.stat().st_mtime_ns) for path in (folder / "run").rglob("*"))
    facts = call("train", "packed", "--out", "run", *SMALL_MODEL, "--json", cwd=folder).json
    assert facts["step"] == 12
    assert sorted((path, path.stat().st_mtime_ns) for path in (folder / "run").rglob("*")) == before


def test_trace_names_the_documents_of_a_step_and_the_steps_of_a_document(folder: Path, call: Call) -> None:
    step = call("trace", "run", "--step", "3", "--dataset", "packed/dataset", "--json", cwd=folder).json
    assert len(step["samples"]) == 4
    document = step["samples"][0]["documents"][0]["id"]
    found = call("trace", "run", "--document", document, "--dataset", "packed/dataset", "--json", cwd=folder).json
    assert 3 in found["documents"][0]["steps"]
    text = call("trace", "run", "--document", document, "--dataset", "packed/dataset", cwd=folder).stdout
    assert "step 3, sample" in text
    for wrong in (["--step", "13"], ["--step", "1", "--document", document], [], ["--document", "xyz"]):
        call("trace", "run", *wrong, "--dataset", "packed/dataset", code=2, cwd=folder)


def test_an_export_holds_what_transformers_reads_and_is_never_overwritten(folder: Path, call: Call) -> None:
    config = json.loads((folder / "model" / "config.json").read_text())
    assert config["model_type"] == "llama"
    assert (folder / "model" / "tokenizer.json").is_file()
    refused = call("export", "run", "--out", "model", code=2, cwd=folder)
    assert "exists and is not empty" in refused.stderr
    again = call("export", "model", "--out", "wider", "--dtype", "float32", "--json", cwd=folder).json
    assert again["parameters"] == call("export", "run", "--out", "same", "--json", cwd=folder).json["parameters"]
    assert json.loads((folder / "wider" / "config.json").read_text())["dtype"] == "float32"


def test_generate_streams_one_text_and_lists_several(folder: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    one = call("generate", "model", "def ", "--max-tokens", "8", "--seed", "1", cwd=folder).stdout
    assert one.startswith("def ")
    facts = call("generate", "model", "def ", "山高", "--max-tokens", "4", "--n", "2", "--json", cwd=folder).json
    assert [(item["prompt"], item["sample"]) for item in facts["completions"]] == [
        ("def ", 0), ("def ", 1), ("山高", 0), ("山高", 1),
    ]  # fmt: skip
    monkeypatch.setattr("sys.stdin", io.StringIO("import "))
    typed = call("generate", "run", "-", "--max-tokens", "2", "--seed", "1", cwd=folder).stdout
    assert typed.startswith("import ")
    call("generate", "model", "--temperature", "-1", code=2, cwd=folder)


def test_serve_says_where_it_listens_and_stops_on_an_interrupt(folder: Path) -> None:
    process = subprocess.Popen(
        [*cli_command(), "serve", "model", "--port", "0", "--name", "tiny", "--json"],
        cwd=folder, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        lines = []
        while not lines or lines[-1] != "}\n":
            lines.append(process.stdout.readline())
        facts = json.loads("".join(lines))
        assert facts["model"] == "tiny"
        with urllib.request.urlopen(f"{facts['url']}/models", timeout=30) as answer:
            assert json.load(answer)["data"][0]["id"] == "tiny"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stdout.read() == ""
    finally:
        process.kill()
        process.wait()


def test_curate_keeps_drops_and_says_why(folder: Path, call: Call) -> None:
    rows = [
        {"id": number, "text": f"Row {number} says that the river runs by the old mill.", "x": 1} for number in range(8)
    ]
    rows += [{"id": 8, "text": "too short"}, {"id": 9, "text": rows[0]["text"]}]
    (folder / "raw.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + "{broken\n")
    facts = call("curate", "raw.jsonl", "--out", "clean", "--json", cwd=folder).json
    assert facts["in"]["documents"] == 10
    assert facts["out"]["documents"] == 8
    assert sum(lost["documents"] for lost in facts["dropped"].values()) == 2
    kept = unpacked(folder / "clean" / "kept.jsonl.zst").splitlines()
    assert [json.loads(line) for line in kept] == rows[:8]
    assert len((folder / "clean" / "quarantine.jsonl").read_text().splitlines()) == 1
    text = call("curate", "raw.jsonl", "--out", "clean", cwd=folder).stdout
    assert "came in" in text
    assert "1 records could not be read" in text
    changed = ("curate", "raw.jsonl", "--out", "clean", "--set", "curate.dedup={exact: false, minhash: false}")
    assert "--force" in call(*changed, code=2, cwd=folder).stderr
    assert call(*changed, "--force", "--json", cwd=folder).json["out"]["documents"] == 9


def test_eval_scores_a_model_on_files_and_writes_the_results(folder: Path, call: Call) -> None:
    (folder / "held.txt").write_text("山高水长，清风徐来。The river runs by the old mill.")
    facts = call("eval", "model", "held.txt", "--out", "scores", "--json", cwd=folder).json
    assert facts["rows"][0]["slices"][0]["bits_per_byte"] > 0
    assert json.loads((folder / "scores" / "results.json").read_text())["rows"] == facts["rows"]
    assert (folder / "scores" / "results.md").is_file()
    text = call("eval", "run", "held.txt", "--set", "evaluate.sample_tokens=0", cwd=folder).stdout
    assert "bits per byte" in text.lower()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["curate", "text"], "no folder is named for the result"),
        (["curate", "absent.jsonl", "--out", "x"], "no such file or folder"),
        (["curate", "text", "--out", "x", "--kind", "pdf"], "pdf"),
        (["eval", "model"], "does not say what it was trained on"),
        (["eval", "run"], "is not in the workspace around it"),
        (["eval", "model", "absent.txt"], "no such file or folder"),
        (["tokenize", "text"], "no folder is named for the tokenizer"),
        (["tokenize", "absent", "--out", "x"], "no such file or folder"),
        (["tokenize", "text", "r.yaml", "--out", "x"], "is a recipe and stands beside other inputs"),
        (["tokenize", "r.yaml", "--out", "x"], "goes with files"),
        (["tokenize", "r.yaml", "--split", "test"], "--split goes with files"),
        (["curate", "r.yaml", "--lang", "zh"], "--lang goes with files"),
        (["curate", "r.yaml", "--text-field", "body"], "--text-field goes with files"),
        (["curate", "r.yaml", "--force"], "--force goes with files"),
        (["curate", "text", "--out", "packed/dataset/dataset.json/x"], "cannot be read or written"),
        (["curate", "text", "--out", "text/x"], "would lie inside the input"),
        (["eval", "r.yaml", "--device", "cpu"], "--device goes with a model"),
        (["tokenize", "text", "--out", "x", "--set", "tokenizer.vocab=9"], "unknown key 'vocab' in tokenizer"),
        (["train", "absent", "--out", "x"], "no such file or folder"),
        (["train", "packed/dataset", "--out", "x", "--set", "train.steps=1"], "no tokenizer is named"),
        (["train", "packed", "--out", "x"], "nothing says how long to train"),
        (["export", "text", "--out", "x"], "run.json is missing"),
        (["export", "run", "--out", "x", "--dtype", "int3"], "cannot export as 'int3'"),
        (["export", "run", "--out", "x", "--set", "seed=1"], "changes a recipe"),
        (["generate", "text"], "holds no model"),
        (["serve", "text"], "holds no model"),
        (["serve", "absent"], "no such file or folder"),
        (["serve", "model", "--workspace", "x"], "--workspace goes with a recipe"),
        (["serve", "model", "--host", "0.0.0.0"], "no API key is set"),
        (["trace", "text", "--step", "1"], "run.json is missing"),
    ],
)
def test_a_verb_refuses_what_it_cannot_use_and_says_why(
    folder: Path, call: Call, arguments: list[str], message: str
) -> None:
    found = call(*arguments, "--json", code=2, cwd=folder).json
    assert message in found["error"]["what"]
    assert not (folder / "x").exists()
