"""Loading a recipe against a small schema of its own: places, aliases, overrides, every mistake said at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, model_validator

from headwater.core.config import Section, field
from headwater.core.errors import RecipeError
from headwater.core.recipe import RecipeProblems, load_recipe, loads_recipe
from headwater.core.recipe_schema import field_docs, yaml_inline
from headwater.core.recipe_source import parse_text, scalar


class Files(Section):
    kind: Literal["files"] = field("files")
    path: str = field()
    """Where the files are."""


class Environment(Section):
    kind: Literal["environment"] = field()
    packages: list[str] = field(default_factory=list)


class Optimizer(Section):
    name: Literal["adamw", "muon"] = field("adamw")
    lr: float = field(1e-3, gt=0, aliases=("learning_rate",))
    weight_decay: float = field(0.1)


class Train(Section):
    PATH_ALIASES: ClassVar[dict[str, str]] = {
        "weight_decay": "optimizer.weight_decay",
        "lr": "optimizer.lr",
        "zero_optimization.stage": "zero",
    }
    optimizer: Optimizer = field(default_factory=Optimizer)
    steps: int | None = field(None, ge=1, unit="steps", aliases=("max_steps",))
    zero: int = field(0)
    share: float = field(0.5, unit="ratio")

    @model_validator(mode="after")
    def _thirteen(self) -> Train:
        if self.steps == 13:
            raise ValueError("13 steps are unlucky\n  mend: use 14")
        return self


class Schema(Section):
    train: Train = field(default_factory=Train, aliases=("training_config",))
    sources: list[Files | Environment] = field(default_factory=list)
    tagged: list[Annotated[Files | Environment, Field(discriminator="kind")]] = field(default_factory=list)
    mixture: dict[str, float] = field(default_factory=dict)
    name: str = field("")


def _refuse(value: Any) -> Any:
    raise ValueError(f"not {value}\n  mend: take 4")


class Inner(Section):
    scale: int = field(1)


class Translating(Section):
    VALUE_ALIASES: ClassVar[dict[str, tuple[str, Callable[[Any], Any]]]] = {
        "fp16": ("precision", lambda on: "half" if on else None),
        "fp16.enabled": ("precision", lambda on: "half" if on else None),
        "fp16.power": ("inner.scale", lambda power: 2**power),
        "strict": ("precision", _refuse),
    }
    precision: str = field("full")
    inner: Inner = field(default_factory=Inner)


def load(text: str, *overrides: str) -> Schema:
    return loads_recipe(text, Schema, overrides, name="r.yaml").config


def problems(text: str, *overrides: str) -> list[str]:
    with pytest.raises(RecipeProblems) as caught:
        load(text, *overrides)
    return [str(problem) for problem in caught.value.problems]


def test_numbers_in_exponent_form_are_whole_and_exact() -> None:
    assert load("train: {steps: 2e12}").train.steps == 2_000_000_000_000
    assert scalar("6e23") == 6 * 10**23
    assert scalar("1.5e3") == 1500
    assert isinstance(scalar("1.5e3"), int)
    assert scalar("16_777_216") == 16_777_216
    assert scalar("3e-4") == 3e-4


def test_words_that_yaml_1_1_takes_for_truth_values_or_times_stay_text() -> None:
    assert [scalar(word) for word in ("no", "on", "y", "12:30", "2024-01-01", "1_")] == [
        "no", "on", "y", "12:30", "2024-01-01", "1_",
    ]  # fmt: skip


@given(st.integers(min_value=0, max_value=10**6), st.integers(min_value=0, max_value=40))
def test_a_whole_number_times_a_power_of_ten_is_exact(mantissa: int, power: int) -> None:
    assert scalar(f"{mantissa}e{power}") == mantissa * 10**power


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_any_float_survives_being_written_and_read(value: float) -> None:
    read = scalar(repr(value))
    assert isinstance(read, int | float)
    assert float(read) == value


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(10**12), 10**12)
        | st.floats(-1e15, 1e15)
        | st.text(
            st.characters(exclude_categories=["Cs", "Cc", "Co", "Cn"], exclude_characters="\u2028\u2029\ufeff\x85")
        ),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc_", min_size=1), inner, max_size=3),
        max_leaves=8,
    )
)
def test_a_default_value_as_the_reference_writes_it_reads_back_equal(value: object) -> None:
    assert parse_text(f"value: {yaml_inline(value)}", "x").plain() == {"value": value}


def test_aliases_and_flat_names_of_other_projects_reach_their_field() -> None:
    config = load("training_config: {max_steps: 5, weight_decay: 0, lr: 1, zero_optimization: {stage: 3}}")
    assert config.train.steps == 5
    assert config.train.optimizer == Optimizer(lr=1, weight_decay=0)
    assert config.train.zero == 3


def test_an_alias_may_translate_its_value_say_nothing_or_refuse() -> None:
    def loaded(text: str) -> Translating:
        return loads_recipe(text, Translating, name="r.yaml").config

    assert loaded("fp16: true").precision == "half"
    assert loaded("fp16: false").precision == "full"
    assert loaded("fp16: {enabled: true, power: 5}") == Translating(precision="half", inner=Inner(scale=32))
    with pytest.raises(RecipeError, match="both set precision"):
        loaded("fp16: true\nprecision: full\n")
    with pytest.raises(RecipeError, match=r"r.yaml:1:1: strict: not 3\n  mend: take 4"):
        loaded("strict: 3")


def test_a_flat_name_and_a_block_that_set_different_fields_go_together() -> None:
    assert load("train: {lr: 2, optimizer: {name: muon}}").train.optimizer == Optimizer(name="muon", lr=2)


def test_one_field_under_two_names_is_refused_with_both_places() -> None:
    (text,) = problems("train:\n  lr: 1\n  optimizer:\n    learning_rate: 2\n")
    assert text.startswith("r.yaml:4:5: 'learning_rate' and 'lr' (line 2) both set train.optimizer.lr")


def test_a_key_given_twice_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"given twice \(first at line 1\)") as caught:
        load("name: a\nname: b\n")
    assert caught.value.where == "r.yaml:2:1"


def test_every_mistake_is_listed_with_place_value_and_mend() -> None:
    found = problems(
        "trian: {}\n"
        "train:\n"
        "  stpes: 1\n"
        "  steps: 0\n"
        "  optimizer: {name: adam, lr: fast}\n"
        "name: 1\n"
        "lr: 2\n"
        "sources:\n"
        "  - {kind: files, pth: x}\n"
    )
    text = "\n".join(found)
    assert "r.yaml:1:1: unknown key 'trian' at the top level of a recipe\n  mend: did you mean 'train'?" in text
    assert "r.yaml:3:3: unknown key 'stpes' in train\n  mend: did you mean 'steps'?" in text
    assert "r.yaml:4:3: train.steps = 0 must be at least 1" in text
    assert "train.optimizer.name is 'adam'; expected one of adamw, muon\n  mend: did you mean adamw?" in text
    assert "train.optimizer.lr is 'fast'; expected number > 0" in text
    assert "r.yaml:6:1: name is 1; expected text\n  mend: put text that looks like a number" in text
    assert (
        "r.yaml:7:1: unknown key 'lr' at the top level of a recipe\n  mend: 'lr' is known as train.optimizer.lr" in text
    )
    assert "r.yaml:9:19: unknown key 'pth' in sources[0]\n  mend: did you mean 'path'?" in text
    assert "sources[0].path is required and not given" in text
    assert len(found) == 9


@pytest.mark.parametrize("name", ["sources", "tagged"])
def test_an_unknown_kind_in_a_list_names_the_known_ones(name: str) -> None:
    (text,) = problems(f"{name}:\n  - kind: fils\n    path: x\n")
    assert f"{name}[0]: kind 'fils' is not known" in text
    assert "did you mean files? known: files, environment" in text


def test_a_check_across_fields_reports_at_its_block_with_its_mend() -> None:
    assert problems("name: x\ntrain: {steps: 13}") == ["r.yaml:2:1: train: 13 steps are unlucky\n  mend: use 14"]


@pytest.mark.parametrize(
    ("value", "mend"),
    [("'1,000'", "write 1_000"), ("10k", "write 10e3"), ("2T", "write 2e12"), ("1.5", ""), ("[1]", "")],
)
def test_a_number_written_another_way_is_refused_with_the_right_way(value: str, mend: str) -> None:
    (text,) = problems(f"train: {{steps: {value}}}")
    assert "expected integer >= 1 or null" in text
    assert text.endswith(f"mend: {mend}") if mend else "mend" not in text


def test_truth_values_and_infinities_are_no_numbers() -> None:
    found = problems("train: {zero: true, share: .nan}\nmixture: {a: .inf}")
    assert [line.split(": ", 1)[1] for line in found] == [
        "train.zero is a number; the value here is true",
        "train.share = nan is not a finite number",
        "mixture.a = inf is not a finite number",
    ]


def test_a_ratio_may_be_a_percentage() -> None:
    assert load("train: {share: 45%}").train.share == 0.45


def test_a_section_with_nothing_under_it_has_its_defaults() -> None:
    assert load("train:\n  # steps: 1\nname: x").train == Train()


def test_overrides_reach_any_field_by_any_name_and_the_last_wins() -> None:
    config = load(
        "train: {steps: 5}\nsources: [{kind: files, path: a}]\nmixture: {a: 1}",
        "training_config.max_steps=2e3",
        "train.lr=7",
        "train.optimizer.name=muon",
        "sources.0.path=b",
        "mixture.b=2",
        "name='3'",
        "train.lr=8",
    )
    assert config.train == Train(steps=2000, optimizer=Optimizer(name="muon", lr=8))
    assert config.sources == [Files(path="b")]
    assert config.mixture == {"a": 1, "b": 2}
    assert config.name == "3"


def test_an_override_with_a_whole_value_replaces_what_was_there() -> None:
    config = load("mixture: {a: 1}\nsources: [{kind: files, path: a}]", "mixture={b: 2}", "sources[0]={path: c}")
    assert config.mixture == {"b": 2}
    assert config.sources == [Files(path="c")]


@pytest.mark.parametrize(
    ("override", "what"),
    [
        ("train", "cannot read the override 'train'"),
        ("=3", "cannot read the override"),
        ("a..b=3", "cannot read the override"),
        ("train.stepz=3", "unknown key 'stepz' in train"),
        ("sources.1.path=b", "sources has no item 1"),
        ("train.steps=abc", "train.steps is 'abc'"),
        ("train.steps=[1", "not valid YAML"),
        ("name.x=1", "name is a block of keys"),
    ],
)
def test_a_wrong_override_is_named(override: str, what: str) -> None:
    with pytest.raises(RecipeError, match="--set") as caught:
        load("sources: [{kind: files, path: a}]", override)
    assert what in str(caught.value)


def test_anchors_and_merge_keys_work_and_cannot_explode(tmp_path: Path) -> None:
    config = load("sources:\n  - &one {kind: files, path: a}\n  - {<<: *one, path: b}\n")
    assert config.sources == [Files(path="a"), Files(path="b")]
    bomb = "a0: &a0 [1, 1]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12))
    with pytest.raises(RecipeError, match="anchors expand"):
        load(bomb)
    with pytest.raises(RecipeError, match="contains itself"):
        load("mixture: &m {a: *m}")


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "the recipe is empty"),
        (b"# only a comment\n", "the recipe is empty"),
        (b"- 1\n", "this is a list"),
        (b"text", "this is text"),
        (b"name: \xff", "not UTF-8"),
        (b"name: a: b", "mapping values are not allowed"),
        (b"train:\n\tsteps: 1", "cannot start any token"),
        (b"name: x\n---\nname: y", "another document"),
        (b"name: !!python/object:os.system x", "tag"),
        (b"name: \x00", "control characters"),
        (b"? [1]\n: 2", "a key must be text"),
        (b"[" * 3000, "nesting depth"),
        (b"x" * (5 << 20), "at most"),
    ],
)
def test_a_file_that_is_no_recipe_says_what_is_wrong(tmp_path: Path, content: bytes, what: str) -> None:
    path = tmp_path / "r.yaml"
    path.write_bytes(content)
    with pytest.raises(RecipeError) as caught:
        load_recipe(path, Schema)
    assert what in str(caught.value)
    assert str(path) in caught.value.where


def test_a_missing_file_suggests_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "quickstart.yaml").write_text("name: x")
    with pytest.raises(RecipeError, match=r"did you mean .*quickstart\.yaml"):
        load_recipe(tmp_path / "quikstart.yaml", Schema)
    with pytest.raises(RecipeError, match="this is a folder"):
        load_recipe(tmp_path, Schema)


def test_json_with_tabs_and_escapes_is_a_recipe_too(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text('{\n\t"name": "\\u4f60\\ud83d\\ude00\\/",\n\t"train": {"steps": 1E3}\n}')
    config = load_recipe(path, Schema).config
    assert config.name == "你😀/"
    assert config.train.steps == 1000


def test_a_loaded_recipe_knows_where_each_field_was_set() -> None:
    loaded = loads_recipe("name: x\ntraining_config:\n  lr: 3\n", Schema, ["mixture.a=1"], name="r.yaml")
    assert str(loaded.place("train.optimizer.lr")) == "r.yaml:3:3"
    assert str(loaded.place("train.steps")) == "r.yaml:2:1"
    assert str(loaded.place("mixture.a")) == "--set mixture.a=1"
    assert loaded.is_set("train.optimizer.lr")
    assert not loaded.is_set("train.optimizer.name")


def test_documentation_lists_every_field_with_type_unit_default_and_aliases() -> None:
    docs = {doc.path: doc for doc in field_docs(Schema)}
    assert docs["train.steps"].type == "integer >= 1 or null"
    assert docs["train.steps"].aliases == ("max_steps",)
    assert docs["train.optimizer.name"].type == "one of adamw, muon"
    assert docs["sources[].path"].doc == "Where the files are."
    assert docs["sources[].path"].default_text() == "required"
    assert docs["train.zero"].aliases == ("zero_optimization.stage",)
    assert docs["mixture"].type == "mapping of names to number"
