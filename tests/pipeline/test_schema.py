"""The recipe's schema: foreign blocks, what follows from what, contradictions, the reference page, `init`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from headwater.core.config import Section
from headwater.core.errors import RecipeError, UserError
from headwater.core.recipe_schema import field_docs, names_of, sections_of
from headwater.pipeline.explain import describe_entry, entries, find_entries, reference
from headwater.pipeline.init import starting_recipe, write_recipe
from headwater.pipeline.schema import Recipe, load, loads
from headwater.pipeline.stages import STAGES, section_uses

REPOSITORY = Path(__file__).resolve().parents[2]

FOREIGN_FLAT = """
model_config: {d_model: 4096, n_layers: 32, n_heads: 32, d_ff: 11008, vocab_size: 32000}
training_config:
  {total_tokens: 2e12, batch_size: 4096, max_seq_len: 4096, warmup_steps: 2500, weight_decay: 0.1,
   adam_beta2: 0.95, clip_grad_norm: 1.0}
"""

FOREIGN_HF = """
model:
  hidden_size: 4096
  num_hidden_layers: 48
  num_attention_heads: 32
  intermediate_size: 16384
  max_position_embeddings: 2048
"""


def mistakes(text: str, *overrides: str) -> str:
    with pytest.raises(RecipeError) as caught:
        loads(text, overrides, name="r.yaml")
    return str(caught.value)


@pytest.mark.parametrize("suffix", ["yaml", "json"])
def test_both_foreign_blocks_load_as_they_stand(tmp_path: Path, suffix: str) -> None:
    import yaml

    for number, text in enumerate((FOREIGN_FLAT, FOREIGN_HF)):
        path = tmp_path / f"block{number}.{suffix}"
        if suffix == "json":
            block = yaml.safe_load(text)
            if number == 0:
                block["training_config"]["total_tokens"] = 2e12
            path.write_text(json.dumps(block, indent="\t"))
        else:
            path.write_text(text)
    flat = load(tmp_path / f"block0.{suffix}").config
    assert (flat.model.hidden_size, flat.model.num_hidden_layers, flat.model.intermediate_size) == (4096, 32, 11008)
    assert flat.model.vocab_size == flat.tokenizer.vocab_size == 32000
    assert (flat.train.tokens, flat.train.global_batch, flat.train.seq_len) == (2_000_000_000_000, 4096, 4096)
    assert (flat.train.optimizer.beta2, flat.train.optimizer.weight_decay) == (0.95, 0.1)
    assert (flat.train.schedule.warmup_steps, flat.train.clip_grad_norm) == (2500, 1.0)
    assert flat.name == "block0"
    hugging_face = load(tmp_path / f"block1.{suffix}").config
    assert hugging_face.model.num_hidden_layers == 48
    assert hugging_face.model.max_position_embeddings == 2048


def test_the_same_block_under_other_projects_names_is_the_same_recipe() -> None:
    other = loads(
        "model: {n_embd: 256, n_layer: 4, n_head: 4, n_kv_heads: 2, ffn_hidden_size: 512}\n"
        "training: {train_iters: 10, global_batch_size: 8, seq_length: 128, clip_grad: 0.5, lr: 1e-3}\n"
        "parallelism: {tensor_model_parallel_size: 2, pipeline_model_parallel_size: 2, micro_batch_size: 1}\n"
    ).config
    ours = loads(
        "model: {hidden_size: 256, num_hidden_layers: 4, num_attention_heads: 4, num_key_value_heads: 2,"
        " intermediate_size: 512}\n"
        "train: {steps: 10, global_batch: 8, seq_len: 128, clip_grad_norm: 0.5, optimizer: {lr: 0.001}}\n"
        "parallel: {tp: 2, pp: 2, micro_batch: 1}\n"
    ).config
    assert other == ours


def test_two_names_of_one_field_are_refused() -> None:
    text = mistakes("model:\n  d_model: 64\n  hidden_size: 64\n")
    assert "r.yaml:3:3: 'hidden_size' and 'd_model' (line 2) both set model.hidden_size" in text


def test_the_model_follows_the_samples_and_the_tokenizer_the_model() -> None:
    recipe = loads("train: {seq_len: 16384}\nmodel: {vocab_size: 1024}").config
    assert recipe.model.max_position_embeddings == 16384
    assert recipe.tokenizer.vocab_size == 1024


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: {vocab_size: 1024}\ntokenizer: {vocab_size: 2000}", "is 1,024 and tokenizer.vocab_size 2,000"),
        ("model: {max_position_embeddings: 64}", "1,024 tokens are longer than model.max_position_embeddings, 64"),
        ("train: {tokens: 10, steps: 5}", "give tokens or steps, not both"),
        ("train: {steps: 5, schedule: {warmup_steps: 9}}", "the warm-up takes 9 steps but its schedule covers only 5"),
        ("parallel: {tp: 3}", "model.num_attention_heads 8 does not divide over tp 3"),
        ("parallel: {pp: 16}", "pp 16 x 1 stages need 16 layers; the model has 8"),
        ("parallel: {cp: 3}", "train.seq_len: 1,024 tokens do not divide into 6 pieces for cp 3"),
        (
            "train: {tokens: 1e6, phases: [{name: a, share: 1, seq_len: 512, global_batch: 64}]}\nparallel: {cp: 1024}",
            "train.phases[0].seq_len: 512 tokens do not divide into 2,048 pieces for cp 1,024",
        ),
        ("parallel: {dp_shard: 5}", "global batch 32 does not divide over 5 data-parallel ranks"),
        ("parallel: {dp_shard: 4, micro_batch: 3}", "is not a multiple of micro_batch 3"),
        ("parallel: {pp: 2, schedule: interleaved_1f1b}", "needs virtual_stages of at least 2, not 1"),
        ("parallel: {pp: 4, micro_batch: 16}", "train.global_batch 32: schedule 1f1b over pp 4 needs at least 4"),
        ("parallel: {pp: 3, schedule: interleaved_1f1b, virtual_stages: 2, micro_batch: 8}", "make whole groups"),
        ("train: {global_batch: 5}\nparallel: {pp: 4, schedule: zbv, virtual_stages: 2}", "at least 8"),
        ("train: {compile: true}\nparallel: {pp: 2, schedule: zbv, virtual_stages: 2}", "compiled blocks cannot"),
        ("parallel: {dp_replicate: 2, zero_stage: 1}", "dp_shard is 1"),
        ("schema: 2", "schema_version is 2; expected 1"),
        ("name: a/b", "name is 'a/b'; it must match ^[A-Za-z0-9]"),
        ("serve: {port: 99999}", "serve.port = 99999 must be at most 65535"),
    ],
)  # fmt: skip
def test_contradictions_are_refused_with_field_and_place(text: str, message: str) -> None:
    found = mistakes(text)
    assert message in found
    assert re.search(r"r\.yaml:\d+:\d+: ", found)


def test_several_contradictions_are_listed_at_once() -> None:
    text = mistakes("model: {max_position_embeddings: 64}\nparallel: {tp: 3, cp: 3}\n")
    assert text.startswith("r.yaml: 6 mistakes:") or text.startswith("r.yaml: 5 mistakes:")


def test_loading_a_recipe_imports_nothing_heavy() -> None:
    code = (
        "import sys; from headwater.pipeline.schema import load; from headwater.pipeline.describe import describe\n"
        "describe(load('recipes/llama-7b.yaml'))\n"
        "heavy = ('torch', 'transformers', 'pyarrow', 'sentencepiece', 'fastapi')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def _sections(section: type[Section]) -> set[type[Section]]:
    from headwater.core.recipe_schema import item_type, value_type

    found = {section}
    for info in section.model_fields.values():
        for annotation in (info.annotation, item_type(info.annotation), value_type(info.annotation)):
            for member in sections_of(annotation) if annotation is not None else []:
                if member not in found:
                    found |= _sections(member)
    return found


def test_every_field_is_documented() -> None:
    assert [doc.path for doc in field_docs(Recipe) if not doc.doc] == []


def test_no_name_means_two_fields_and_every_flat_name_leads_somewhere() -> None:
    for section in _sections(Recipe):
        targets = names_of(section)
        for name in section.model_fields:
            assert targets[name] == name, f"{section.__name__}.{name} is shadowed by an alias"
        seen: dict[str, str] = {}
        for name, info in section.model_fields.items():
            from headwater.core.config import field_aliases

            for alias in field_aliases(info):
                assert seen.setdefault(alias, name) == name, (
                    f"{section.__name__}: {alias} means {seen[alias]} and {name}"
                )
                assert alias not in section.model_fields
        known = {doc.path for doc in field_docs(section)}
        for alias, target in section.PATH_ALIASES.items():
            assert target in known, f"{section.__name__}.PATH_ALIASES[{alias!r}] leads to {target}"
            assert alias not in section.model_fields


def test_stages_name_sections_that_exist_and_earlier_stages() -> None:
    before: set[str] = set()
    for stage in STAGES:
        assert set(stage.sections) <= set(Recipe.model_fields)
        assert set(stage.inputs) <= before
        before.add(stage.name)


@pytest.mark.parametrize(
    ("query", "path"),
    [
        ("lr", "train.optimizer.lr"),
        ("train.optimizer.lr", "train.optimizer.lr"),
        ("train.lr", "train.optimizer.lr"),
        ("training_config.adam_beta2", "train.optimizer.beta2"),
        ("d_model", "model.hidden_size"),
        ("model_config.n_layers", "model.num_hidden_layers"),
        ("collect.sources.0.paths", "collect.sources[].paths"),
        ("collect.sources[2].path", "collect.sources[].paths"),
        ("tensor_parallel_size", "parallel.tp"),
    ],
)
def test_explain_finds_a_field_by_path_alias_or_bare_name(query: str, path: str) -> None:
    found = find_entries(query, entries(Recipe, section_uses()))
    assert found[0].path == path


def test_explain_says_meaning_type_unit_default_kind_names_and_reader() -> None:
    (entry,) = find_entries("train.tokens", entries(Recipe, section_uses()))
    text = describe_entry(entry)
    for line in (
        "type:        integer > 0 or null",
        "unit:        tokens",
        "default:     null",
        "kind:        identity",
    ):
        assert line in text
    assert "total_tokens" in text
    assert "read by:     stage train; a change makes what was made with it stale" in text


def test_a_field_inside_an_operational_block_is_operational() -> None:
    known = {entry.path: entry for entry in entries(Recipe, section_uses())}
    assert known["train.checkpoint.every"].kind == "operational"
    assert known["parallel.tp"].kind == "operational"
    assert known["serve.port"].used == "`headwater serve`; a change makes nothing stale"


def test_explaining_an_unknown_field_suggests_the_nearest() -> None:
    with pytest.raises(UserError, match=r"did you mean train\.optimizer\.weight_decay"):
        find_entries("wieght_decay", entries(Recipe, section_uses()))


def test_the_reference_page_is_current() -> None:
    page = REPOSITORY / "docs" / "reference" / "recipe.md"
    expected = reference(entries(Recipe, section_uses()))
    assert page.read_text() == expected, "run: python -m headwater.pipeline.explain > docs/reference/recipe.md"


def test_init_writes_a_recipe_that_validates_and_shows_every_default(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    write_recipe(path, starting_recipe())
    text = path.read_text()
    recipe = load(path).config
    assert recipe.name == "mine"
    assert recipe.model.hidden_size == 256
    with_defaults = re.sub(r"(?m)^( *)# (\w+: )", r"\1\2", text)
    assert with_defaults != text
    assert loads(with_defaults).config == recipe.model_copy(update={"name": "run"})
    with pytest.raises(UserError, match="exists already"):
        write_recipe(path, text)
    write_recipe(path, text, force=True)
