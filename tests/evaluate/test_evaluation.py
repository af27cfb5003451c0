"""Whole evaluations: of a run on its dataset, of an export on files, through the stage, with a person's own metric."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from headwater.core.artifacts import ArtifactStore
from headwater.core.config import identity
from headwater.core.errors import CorruptArtifactError, InputError, UserError
from headwater.core.stage import StageContext
from headwater.dataset import TokenDataset
from headwater.evaluate import (
    EvaluateConfig,
    EvaluationResult,
    Evaluator,
    HeldOut,
    Unigram,
    evaluate_model,
    held_out_of,
    held_out_of_dataset,
    open_model,
)
from headwater.evaluate.sources import training_stream
from headwater.evaluate.stage import build
from headwater.model import save_hf
from headwater.tokenizer import Tokenizer
from headwater.train import RunFolder

from .conftest import World


@pytest.fixture(scope="module")
def result(world: World, run: RunFolder) -> EvaluationResult:
    return evaluate_model(run.path, world.dataset, EvaluateConfig(sample_tokens=12))


def test_the_model_stands_beside_every_baseline(result: EvaluationResult) -> None:
    assert [row.name for row in result.rows] == [
        "model", "unigram", "5-gram", "xz -9e, each document", "xz -9e, concatenated"
    ]  # fmt: skip
    bits = {row.name: row.bits_per_byte for row in result.rows}
    assert all(value is not None and value > 0 for value in bits.values())
    assert bits["5-gram"] < bits["unigram"]  # type: ignore[operator]
    assert [(item["name"], item["beaten"]) for item in result.comparison] == [
        (name, bits["model"] < bits[name])
        for name in list(bits)[1:]  # type: ignore[operator]
    ]
    assert {item["name"]: item["beaten"] for item in result.comparison}["unigram"]


def test_all_of_them_are_scored_on_the_same_documents(result: EvaluationResult, world: World) -> None:
    texts = [document.text for made in world.held_out.values() for document in made if document.text]
    assert result.data["documents"] == len(texts)
    assert result.data["bytes"] == sum(len(text.encode()) for text in texts)
    for row in result.rows:
        assert row.slices[0]["bytes"] == result.data["bytes"]
        assert {piece["name"] for piece in row.slices if piece["kind"] == "domain"} == {"books", "web"}
    for row in result.rows[:3]:
        assert row.slices[0]["tokens"] == result.data["tokens"]
        assert {piece["name"] for piece in row.slices if piece["kind"] == "language"} == {"en", "zh"}


def test_the_protocol_is_stated_and_fingerprinted(result: EvaluationResult, run: RunFolder, world: World) -> None:
    protocol = result.protocol
    assert (protocol["window"], protocol["stride"]) == (64, 64)  # the samples it was trained on
    assert protocol["first_token"] == "predicted from bos"
    assert protocol["data"] == result.data["fingerprint"]
    again = evaluate_model(run.path, world.dataset, EvaluateConfig(sample_tokens=0, baselines=(), batch_tokens=70))
    assert again.protocol["fingerprint"] == protocol["fingerprint"]
    assert again.rows[0].bits_per_byte == pytest.approx(result.rows[0].bits_per_byte, abs=1e-5)
    other = evaluate_model(run.path, world.dataset, EvaluateConfig(sample_tokens=0, baselines=(), stride=16))
    assert other.protocol["fingerprint"] != protocol["fingerprint"]
    assert other.protocol["context_of_later_windows"] == 49


def test_the_baselines_learn_from_the_training_split_alone(result: EvaluationResult, world: World) -> None:
    domains = TokenDataset.open(world.dataset).split("train").domains.values()
    tokens = sum(stream.tokens - stream.documents for stream in domains)  # bos stands for no text
    for row in result.rows[1:3]:
        assert row.details["training_tokens"] == row.details["training_tokens_available"] == tokens


def test_a_limit_takes_whole_documents_of_every_domain(world: World) -> None:
    dataset = TokenDataset.open(world.dataset)
    stream, used = training_stream(dataset, 2000)
    assert used["training_tokens"] == len(stream) <= 2000 < used["training_tokens_available"]
    assert stream[-1] == dataset.eos_id
    books = dataset.split("train").domains["books"]
    first = books.document(0)
    assert np.array_equal(stream[: first.stop - 1], books.read(first.start + 1, first.stop))
    assert int((stream == dataset.eos_id).sum()) > 4


def test_samples_continue_an_opening_of_each_domain(result: EvaluationResult) -> None:
    assert [sample["domain"] for sample in result.samples] == ["books", "web"]
    assert all(sample["prompt"] and sample["tokens"] <= 12 for sample in result.samples)


def test_the_markdown_says_what_was_beaten(result: EvaluationResult) -> None:
    text = result.markdown()
    for part in ("# Evaluation of brook", "| 5-gram |", "| books |", "| zh |", "- window: `64`", "## Generated text"):
        assert part in text
    assert "beaten |" in text


def test_the_json_is_plain_and_reads_back(result: EvaluationResult) -> None:
    read = json.loads(result.json_bytes())
    assert read == json.loads(json.dumps(result.as_json()))
    assert read["rows"][0]["slices"][0]["kind"] == "overall"
    assert str(Path.cwd()) not in result.json_bytes().decode()


def test_a_checkpoint_an_export_and_a_run_score_alike(run: RunFolder, world: World, tmp_path: Path) -> None:
    config = EvaluateConfig(sample_tokens=0, baselines=(), window=64)
    opened = open_model(run.path, config)
    assert opened.facts["step"] == 40
    save_hf(opened.decoder, tmp_path / "export", tokenizer_files=opened.tokenizer.export_hf)
    checkpoint = run.final
    assert checkpoint is not None
    values = {
        evaluate_model(path, world.dataset, config).rows[0].bits_per_byte
        for path in (run.path, checkpoint.path, tmp_path / "export")
    }
    assert len(values) == 1


def test_files_are_scored_with_a_note_on_missing_baselines(run: RunFolder, tmp_path: Path) -> None:
    rows = [{"text": "半亩方塘一鉴开", "lang": "zh", "domain": "poems"}, {"text": "The river runs."}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "b.txt").write_text("Streams meet.\n")
    result = evaluate_model(run.path, [tmp_path / "a.jsonl", tmp_path / "b.txt"])
    assert result.data["documents"] == 3
    assert result.rows[0].of("domain", "poems")["documents"] == 1  # type: ignore[index]
    assert [row.name for row in result.rows] == ["model", "xz -9e, each document", "xz -9e, concatenated"]
    assert "no unigram and no ngram baseline" in result.notes[0]
    assert result.notes[0] in result.markdown()


def test_a_row_that_cannot_be_read_is_named(run: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "fine"}\n{"body": 1}\n')
    with pytest.raises(InputError, match=r"a\.jsonl:2"):
        evaluate_model(run.path, tmp_path / "a.jsonl")
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(InputError, match="no text to score"):
        evaluate_model(run.path, tmp_path / "empty.txt")


def test_a_front_of_each_domain_is_taken_and_the_rest_counted(world: World, tokenizer: Tokenizer) -> None:
    dataset = TokenDataset.open(world.dataset)
    whole = held_out_of_dataset(dataset, tokenizer, "validation")
    front = held_out_of_dataset(dataset, tokenizer, "validation", max_tokens=100)
    for domain in ("books", "web"):
        ours = [document for document in front.documents if document.domain == domain]
        theirs = [document for document in whole.documents if document.domain == domain]
        assert [document.id for document in ours] == [document.id for document in theirs[: len(ours)]]
        assert sum(len(document.tokens) for document in ours[:-1]) < 100
    assert front.left_out["beyond max_tokens"] == len(whole.documents) - len(front.documents)


def test_texts_come_back_from_the_dataset_as_they_were(world: World, tokenizer: Tokenizer) -> None:
    held_out = held_out_of(world.dataset, tokenizer, EvaluateConfig())
    expected = [(d.id, d.text, d.lang) for made in world.held_out.values() for d in made if d.text]
    assert [(document.id, document.text, document.lang) for document in held_out.documents] == expected


def test_a_dataset_of_another_tokenizer_or_split_is_refused(world: World, run: RunFolder, tmp_path: Path) -> None:
    index = json.loads((world.dataset / "dataset.json").read_bytes())
    (tmp_path / "dataset.json").write_text(json.dumps({**index, "tokenizer_sha256": "0" * 64}))
    (tmp_path / "train").symlink_to(world.dataset / "train")
    (tmp_path / "validation").symlink_to(world.dataset / "validation")
    with pytest.raises((InputError, CorruptArtifactError)):
        evaluate_model(run.path, tmp_path)
    with pytest.raises(InputError, match="no test split"):
        evaluate_model(run.path, world.dataset, EvaluateConfig(split="test"))


def test_a_window_beyond_the_context_is_refused(run: RunFolder) -> None:
    with pytest.raises(InputError, match=r"window of 512 tokens exceeds the model's context of 256"):
        open_model(run.path, EvaluateConfig(window=512))
    with pytest.raises(InputError, match="stride of 100 tokens exceeds the window of 64"):
        open_model(run.path, EvaluateConfig(stride=100))
    with pytest.raises(ValueError, match="stride 9 is above window 8"):
        EvaluateConfig(window=8, stride=9)


class Longest:
    name = "longest"

    def evaluate(self, model: object, test_data: HeldOut) -> float:
        return float(max(len(document.tokens) for document in test_data.documents))


def test_an_evaluator_takes_metrics_of_ones_own(run: RunFolder, world: World, tokenizer: Tokenizer) -> None:
    values = Evaluator(run.path).run(world.dataset)
    assert values["bits_per_byte"] == pytest.approx(values["domain/web/bits_per_byte"], rel=0.5)
    assert math.log(values["byte_perplexity"]) == pytest.approx(values["bits_per_byte"] * math.log(2))
    held_out = held_out_of(world.dataset, tokenizer, EvaluateConfig())
    assert Evaluator(run.path, [Longest()]).run(held_out).keys() == {"longest"}
    unigram = Unigram.fit(held_out.documents[0].tokens, vocab_size=tokenizer.vocab_size)
    assert Evaluator(unigram).run(held_out)["bits_per_byte"] > 0
    with pytest.raises(UserError, match="two metrics give longest"):
        Evaluator(unigram, [Longest(), Longest()]).run(held_out)
    with pytest.raises(UserError, match="has no tokenizer"):
        Evaluator(unigram).run(world.dataset)


def test_the_stage_writes_results_and_counts_and_again_the_same(run: RunFolder, world: World, tmp_path: Path) -> None:
    config = EvaluateConfig(sample_tokens=4)
    store = ArtifactStore(tmp_path)
    with store.writer("dataset", "0" * 16, version=1, identity={}, inputs={}) as out:
        for path in sorted(world.dataset.rglob("*")):
            if path.is_file():
                out.write(path.relative_to(world.dataset).as_posix(), path.read_bytes())
        dataset = out.commit({})
    made = []
    for key in ("1" * 16, "2" * 16):
        with store.writer("evaluate", key, version=1, identity=identity(config), inputs={}) as out:
            made.append(out.commit(build(config, {"dataset": dataset}, out, StageContext(tmp_path), run)))
    one, two = made
    assert one.files() == two.files() == ["results.json", "results.md"]
    assert [one.facts(name)["sha256"] for name in one.files()] == [two.facts(name)["sha256"] for name in two.files()]
    written = json.loads(one.file("results.json").read_bytes())
    assert one.counts["bits_per_byte"] == written["rows"][0]["slices"][0]["bits_per_byte"]
    assert "unigram" in one.counts["beaten"]
    assert written["data"]["source"] == f"dataset {'0' * 16}"
