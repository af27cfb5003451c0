"""Tasks on a tiny model: figures, records, protocols, and everything that can be wrong with an item."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from headwater.core.errors import InputError, RecipeError, UserError
from headwater.engine import Engine, load_model
from headwater.evaluate import EvaluateConfig, Evaluator, TaskMetric, open_model
from headwater.evaluate.backends import LocalBackend, Written
from headwater.evaluate.tasks import TaskSpec, builtin_tasks, find_tasks, load_task, run_task
from headwater.evaluate.tasks.code import pass_at
from headwater.evaluate.tasks.report import markdown, page
from headwater.evaluate.tasks.suite import run_suite
from headwater.tokenizer import Tokenizer

from .models import OWN_TASK, RIVERS, tiny_folder, write


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def backend(folder: Path) -> LocalBackend:
    return LocalBackend.open(folder, device="cpu")


@pytest.fixture
def rivers(tmp_path: Path) -> TaskSpec:
    write(tmp_path / "data" / "rivers.jsonl", RIVERS)
    (tmp_path / "rivers.yaml").write_text(OWN_TASK)
    return load_task(tmp_path / "rivers.yaml")


class Says(LocalBackend):
    """A model whose words are given, for what scorers do with them."""

    def __init__(self, backend: LocalBackend, texts: Sequence[str]) -> None:
        super().__init__("says", backend.engine)
        self.texts_given = list(texts)

    def complete(self, prompts: Sequence[str], *_: Any) -> list[Written]:
        return [Written([self.texts_given.pop(0)], finish=["stop"]) for _ in prompts]


def test_every_task_of_ours_loads_and_has_a_title() -> None:
    assert {
        "gsm8k",
        "humaneval",
        "nq_open",
        "triviaqa",
        "wikitext",
        "cmrc_cloze",
        "coherence",
    } <= builtin_tasks().keys()
    assert all(spec.title for spec in builtin_tasks().values())


def test_likelihoods_of_a_task_are_those_of_plain_passes(
    backend: LocalBackend, rivers: TaskSpec, tmp_path: Path
) -> None:
    import torch

    found = run_task(rivers, backend, folder=tmp_path / "data")
    model, tokenizer = backend.engine.model, backend.engine.tokenizer
    for record in found.records:
        for choice, nats in zip(record["choices"], record["nats"], strict=True):
            context = [*tokenizer.document_prefix, *tokenizer.encode(record["context"])]
            whole = [*tokenizer.document_prefix, *tokenizer.encode(record["context"] + choice)]
            with torch.inference_mode():
                logs = model.logits(model(torch.tensor([whole])))[0].log_softmax(-1)
            expected = sum(float(logs[place - 1, whole[place]]) for place in range(len(context), len(whole)))
            assert nats == pytest.approx(expected, abs=1e-4)
    assert found.metrics["acc"].n == 6
    assert set(found.groups) == {row["country"] for row in RIVERS}


def test_a_run_repeats_exactly_and_its_fingerprint_moves_with_the_protocol_alone(
    backend: LocalBackend, rivers: TaskSpec, tmp_path: Path
) -> None:
    one, two = (run_task(rivers, backend, folder=tmp_path / "data") for _ in range(2))
    assert one.records == two.records
    assert one.fingerprint == two.fingerprint
    other = rivers.model_copy(update={"context": "In {{ country }} one sees"})
    assert run_task(other, backend, folder=tmp_path / "data").fingerprint != one.fingerprint
    assert run_task(rivers, backend, folder=tmp_path / "data", limit=3).fingerprint != one.fingerprint
    assert one.protocol["reads"]["tokenizer"] == backend.engine.tokenizer.sha256[:16]


def test_records_that_are_read_again_give_the_figures_in_the_same_order(
    backend: LocalBackend, rivers: TaskSpec, tmp_path: Path
) -> None:
    first, again = (
        run_task(rivers, backend, folder=tmp_path / "data", records=tmp_path / "rivers.jsonl") for _ in range(2)
    )
    assert list(first.metrics.items()) == list(again.metrics.items())


def test_records_of_another_protocol_or_other_weights_are_refused(
    backend: LocalBackend, rivers: TaskSpec, tmp_path: Path
) -> None:
    records = tmp_path / "records.jsonl"
    first = run_task(rivers, backend, folder=tmp_path / "data", records=records)
    again = run_task(rivers, backend, folder=tmp_path / "data", records=records)
    assert again.records == first.records
    with pytest.raises(UserError, match="another protocol"):
        run_task(rivers, backend, folder=tmp_path / "data", limit=2, records=records)
    other = LocalBackend("other", backend.engine, model={"weights": "0000"})
    with pytest.raises(UserError, match="model or data"):
        run_task(rivers, other, folder=tmp_path / "data", records=records)


def test_a_bad_row_is_set_aside_with_its_number_and_reason(
    backend: LocalBackend, rivers: TaskSpec, tmp_path: Path
) -> None:
    bad = [
        RIVERS[0],
        "{broken",
        {"country": "Peru", "answer": 0},
        {"country": "Peru", "options": ["one"], "answer": 0},
        {"country": "Peru", "options": ["one", "two"], "answer": 7},
        {"country": "Peru", "options": ["one", " "], "answer": 0},
        {"country": "Peru", "options": "one", "answer": 0},
        [1, 2],
        RIVERS[1],
    ]
    write(tmp_path / "data" / "rivers.jsonl", bad)
    found = run_task(rivers, backend, folder=tmp_path / "data")
    assert [row for row, _ in found.set_aside] == [2, 3, 4, 5, 6, 7, 8]
    reasons = " | ".join(reason for _, reason in found.set_aside)
    for said in (
        "is no JSON",
        "nothing for {{ options }}",
        "1 choices",
        "none of the 2 choices",
        "empty choice",
        "not a list",
        "a list",
    ):
        assert said in reasons
    assert found.metrics["acc"].n == len(found.records) == 2


def test_an_item_that_cannot_be_scored_says_so_and_counts_in_no_figure(backend: LocalBackend, tmp_path: Path) -> None:
    rows = [
        {"a": "short", "b": " 水"},
        {"a": "short", "b": " word" * 400},
        {"a": "long " * 400, "b": " word"},
    ]
    write(tmp_path / "rows.jsonl", rows)
    spec = TaskSpec(name="t", kind="cloze", files=("rows.jsonl",), context="{{ a }}", gold="{{ b }}", delimiter="")
    found = run_task(spec, backend, folder=tmp_path)
    assert "exceeds the model's context" in found.records[1]["failed"]
    assert found.records[2]["context_tokens_dropped"] > 0
    assert found.metrics["acc"].n == 2
    result = run_suite([spec], backend, folder=tmp_path).as_json()["tasks"]["t"]
    assert result["not_scored"] == [{"id": "2", "reason": found.records[1]["failed"]}]
    assert "1 items could not be scored and count in no figure" in result["notes"]
    assert "1 prompts were longer than the context and lost their left end" in result["notes"]


def test_empty_generations_are_wrong_and_counted(backend: LocalBackend) -> None:
    spec = find_tasks(names=["nq_open"])[0].model_copy(
        update={"rows": ({"question": "who", "answer": ["she"]}, {"question": "what", "answer": ["it"]})}
    )
    found = run_task(spec, Says(backend, ["", " it.\nQ:"]))
    assert found.metrics["exact_match"].value == 0.5
    assert [record["empty"] for record in found.records] == [1, 0]
    said = run_suite([spec], Says(backend, ["", " it"])).as_json()["tasks"]["nq_open"]["notes"]
    assert "1 generations are empty and count as wrong" in said


def test_a_prompt_longer_than_the_context_loses_its_left_end_and_says_so(backend: LocalBackend) -> None:
    spec = TaskSpec(
        name="t", kind="generate", rows=({"a": "word " * 300},), context="{{ a }}", scorer="exact_match", max_tokens=8
    )
    assert run_task(spec, backend).records[0]["context_tokens_dropped"] > 0


def test_gsm8k_lists_the_items_on_which_rules_disagree(backend: LocalBackend) -> None:
    rows = tuple({"question": "2+2?", "answer": "two and two\n#### 4"} for _ in range(3))
    spec = find_tasks(names=["gsm8k"])[0]
    spec = spec.model_copy(update={"rows": rows, "fewshot": spec.fewshot.model_copy(update={"count": 0})})
    texts = [" #### 4", " The answer is 4. So...", " #### 5"]
    result = run_suite([spec], Says(backend, texts)).as_json()["tasks"]["gsm8k"]
    assert result["disagreements"] == ["2"]
    values = {name: figure["value"] for name, figure in result["metrics"].items()}
    assert values["strict"] == pytest.approx(1 / 3)
    assert values["robust"] == pytest.approx(2 / 3)


def test_gsm8ks_prompt_is_five_solved_examples_as_in_lm_evaluation_harness(tmp_path: Path) -> None:
    from headwater.evaluate.tasks.run import questions

    write(tmp_path / "train.jsonl", [{"question": f"q{n}", "answer": f"so\n#### {n}"} for n in range(6)])
    write(tmp_path / "test.jsonl", [{"question": "how many?", "answer": "x\n#### 1,018"}])
    (item,) = questions(find_tasks(names=["gsm8k"])[0], folder=tmp_path).items.items
    shots = "".join(f"Question: q{n}\nAnswer: so\n#### {n}\n\n" for n in range(5))
    assert item.context == shots + "Question: how many?\nAnswer:"
    assert item.gold == "1,018"


def test_pass_at_k_is_the_unbiased_estimator() -> None:
    for n, c, k in ((5, 2, 1), (10, 3, 4), (20, 0, 5), (4, 4, 4), (200, 37, 100)):
        assert pass_at(n, c, k) == pytest.approx(1 - math.comb(n - c, k) / math.comb(n, k))
    with pytest.raises(ValueError, match="pass@3"):
        pass_at(2, 1, 3)


def test_code_that_passes_scores_and_the_level_is_reported(backend: LocalBackend) -> None:
    problem = {
        "task_id": "add",
        "prompt": "def add(a, b):\n",
        "test": "def check(f):\n    assert f(1, 2) == 3\n",
        "entry_point": "add",
    }
    spec = find_tasks(names=["humaneval"])[0].model_copy(update={"rows": (problem, {**problem, "task_id": "again"})})
    found = run_task(spec, Says(backend, ["    return a + b\n", "    return 0\n"]))
    assert found.metrics["pass@1"].value == 0.5
    assert found.records[0]["passed"] == [True]
    assert found.records[0]["sandbox"] in ("full", "reduced")
    assert found.records[1]["reasons"][0].startswith("AssertionError")


def test_perplexity_is_a_ratio_of_sums_and_windows_do_not_lose_tokens(backend: LocalBackend, tmp_path: Path) -> None:
    texts = ["The river runs to the sea. " * 30, "半亩方塘一鉴开，" * 20, "short"]
    write(tmp_path / "t.jsonl", [{"text": text, "domain": f"d{len(text) % 2}"} for text in texts])
    spec = TaskSpec(name="ppl", kind="perplexity", files=("t.jsonl",), context="{{ text }}", group="domain")
    found = run_task(spec, backend, folder=tmp_path)
    nats = sum(record["sums"]["nats"] for record in found.records)
    size = sum(len(text.encode()) for text in texts)
    assert found.metrics["bits_per_byte"].value == pytest.approx(nats / size / math.log(2))
    assert found.metrics["byte_perplexity"].value == pytest.approx(math.exp(nats / size))
    assert found.records[0]["windows"] > 1
    assert "bits_per_byte" in found.groups["d0"]
    small = run_task(spec.model_copy(update={"window": 16, "stride": 8}), backend, folder=tmp_path)
    assert [r["sums"]["tokens"] for r in small.records] == [r["sums"]["tokens"] for r in found.records]
    too_wide = run_task(spec.model_copy(update={"window": 4096}), backend, folder=tmp_path)
    assert all("exceeds the model's context" in record["failed"] for record in too_wide.records)


def test_another_tokenizer_than_the_models_is_refused(folder: Path, tmp_path: Path) -> None:
    from headwater.tokenizer.config import TokenizerConfig
    from headwater.tokenizer.training import train_model

    (tmp_path / "tokenizer.model").write_bytes(
        train_model(["a larger vocabulary than the model has, 更大的词表 " + chr(n) for n in range(0x4E00, 0x5200)],
                    TokenizerConfig(vocab_size=1500))
    )  # fmt: skip
    model, _ = load_model(folder, device="cpu")
    with pytest.raises(InputError, match="the tokenizer has"):
        LocalBackend("wrong", Engine(model, Tokenizer.load(tmp_path)))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("kind: multiple_choice", "kind"),
        ('choices: "{{ options }}"', "choices"),
        ("files: [rivers.jsonl]", "files, hub or rows"),
    ],
)
def test_a_task_file_that_lacks_something_names_it(tmp_path: Path, change: str, said: str) -> None:
    (tmp_path / "t.yaml").write_text(OWN_TASK.replace(change, ""))
    with pytest.raises(RecipeError, match=said):
        load_task(tmp_path / "t.yaml")


def test_a_task_is_a_metric_of_an_evaluator(folder: Path, rivers: TaskSpec, tmp_path: Path) -> None:
    model = open_model(folder, EvaluateConfig(), device="cpu")
    found = Evaluator(model, [TaskMetric(rivers)]).run(tmp_path / "data")
    assert (
        found["rivers/acc"]
        == run_task(rivers, LocalBackend.open(folder), folder=tmp_path / "data").metrics["acc"].value
    )


def test_the_page_holds_every_item_and_asks_nothing_of_the_network(
    backend: LocalBackend, rivers: TaskSpec, tmp_path: Path
) -> None:
    import base64
    import gzip
    import re

    found = run_suite([rivers], backend, folder=tmp_path / "data")
    text = page(found)
    packed = re.search(r'id="packed" type="text/plain">([^<]+)<', text)
    assert packed is not None
    items = json.loads(gzip.decompress(base64.b64decode(packed[1])))["rivers"]["records"]
    assert [item["id"] for item in items] == [record["id"] for record in found.results["rivers"].records]
    assert not re.search(r"https?://|src=|@import", text)
    assert "中国" in text or "中国" in json.dumps(items, ensure_ascii=False)
    assert found.results["rivers"].fingerprint in markdown(found)
