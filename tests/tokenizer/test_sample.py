"""The sample: fair to domains and languages, and the same however documents lie in shards."""

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.core.documents import Document, DocumentWriter, document_id
from headwater.core.errors import RecipeError
from headwater.core.executor import InlineExecutor, make_executor
from headwater.tokenizer import sample
from headwater.tokenizer.config import TokenizerConfig

from .texts import documents

INLINE = InlineExecutor()

sizes = st.dictionaries(
    st.tuples(st.sampled_from(["web", "books", "code"]), st.sampled_from(["zh", "en", ""])),
    st.integers(1, 10**9),
    min_size=1,
)


@given(sizes, st.integers(10_000, 10**9), st.floats(0, 1))
def test_shares_fill_the_sample_or_take_everything(
    found: dict[sample.Stratum, int], most: int, exponent: float
) -> None:
    budgets = sample.share_out(found, TokenizerConfig(sample_bytes=most, sample_exponent=exponent))
    assert budgets.keys() == found.keys()
    assert all(0 <= budgets[stratum] <= found[stratum] for stratum in found)
    wanted = min(most, sum(found.values()))
    assert wanted - len(found) <= sum(budgets.values()) <= most


def test_exponent_one_is_proportional_and_zero_equal() -> None:
    found = {("web", "en"): 9_000_000, ("web", "zh"): 1_000_000}
    proportional = sample.share_out(found, TokenizerConfig(sample_bytes=1_000_000, sample_exponent=1.0))
    assert proportional == {("web", "en"): 900_000, ("web", "zh"): 100_000}
    equal = sample.share_out(found, TokenizerConfig(sample_bytes=1_000_000, sample_exponent=0.0))
    assert equal == {("web", "en"): 500_000, ("web", "zh"): 500_000}


def test_weights_by_domain_are_kept_and_checked() -> None:
    found = {("web", "en"): 10**7, ("web", "zh"): 10**7, ("books", "zh"): 10**7}
    config = TokenizerConfig(sample_bytes=1_000_000, sample_weights={"web": 3, "books": 1})
    budgets = sample.share_out(found, config)
    assert budgets == {("web", "en"): 375_000, ("web", "zh"): 375_000, ("books", "zh"): 250_000}
    with pytest.raises(RecipeError, match="poems"):
        sample.share_out(found, TokenizerConfig(sample_weights={"poems": 1}))
    with pytest.raises(RecipeError, match="positive"):
        sample.share_out(found, TokenizerConfig(sample_weights={"web": 0}))


def _shards(root: Path, found: list[Document], count: int) -> list[Path]:
    root.mkdir()
    paths = [root / f"{number}.parquet" for number in range(count)]
    for number, path in enumerate(paths):
        with DocumentWriter(path) as writer:
            for document in found[number::count]:
                writer.add(document)
    return paths


def test_the_sample_does_not_depend_on_shards_order_or_workers(tmp_path: Path) -> None:
    found = documents()
    config = TokenizerConfig(sample_bytes=60_000)
    samples = []
    for number, shards in enumerate((1, 3, 7)):
        random.Random(number).shuffle(found)
        paths = _shards(tmp_path / str(shards), found, shards)
        with make_executor("process", 2) if shards == 7 else INLINE as executor:
            surveyed = sample.survey(paths[::-1], config.sample_bytes, executor)
            chosen = sample.choose(surveyed, sample.share_out(surveyed.bytes, config))
            samples.append(sample.read(paths[::-1], chosen, executor))
    ids = [document.id for document in samples[0]]
    assert len(ids) == len(set(ids)) > 10
    assert [[document.id for document in one] for one in samples] == [ids] * 3
    assert samples[0] == samples[1] == samples[2]
    assert {(document.domain, document.lang) for document in samples[0]} == {(d.domain, d.lang) for d in found}


def test_survey_counts_every_document_and_byte(tmp_path: Path) -> None:
    found = documents()
    surveyed = sample.survey(_shards(tmp_path / "s", found, 4), 1000, INLINE)
    assert sum(surveyed.documents.values()) == len(found)
    assert sum(surveyed.bytes.values()) == sum(len(document.text.encode()) for document in found)


def test_one_huge_document_gives_only_its_beginning(tmp_path: Path) -> None:
    huge = Document(document_id("s", "a", 0), "海上生明月。" * 200_000, source="s", lang="zh", domain="books")
    paths = _shards(tmp_path / "s", [huge], 1)
    surveyed = sample.survey(paths, 10**7, INLINE)
    (document,) = sample.read(paths, sample.choose(surveyed, {("books", "zh"): 10**7}), INLINE)
    assert huge.text.startswith(document.text)
    assert sample.MAX_DOCUMENT_BYTES - 3 < len(document.text.encode()) <= sample.MAX_DOCUMENT_BYTES
