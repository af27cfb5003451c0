"""Streams over shards, windows that cover them, and datasets that do not fit together."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.core.errors import CorruptArtifactError, InputError
from headwater.dataset import TokenDataset
from headwater.tokenizer import Tokenizer

from .conftest import MakeDataset

layouts = st.lists(st.lists(st.integers(0, 12), max_size=8), min_size=1, max_size=4)
shared = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@given(layouts, st.data())
@shared
def test_any_window_has_the_tokens_and_documents_of_the_plain_stream(
    make_dataset: MakeDataset, layout: list[list[int]], data: st.DataObject
) -> None:
    stream = make_dataset({("train", "web"): layout}).split("train").domains["web"]
    rows = list(stream.iter_documents())
    assert len(rows) == stream.documents == sum(map(len, layout))
    tokens = np.concatenate([row for _, row in rows]) if rows else np.zeros(0)
    owners = np.repeat(np.arange(len(rows)), [len(row) for _, row in rows])
    assert len(tokens) == stream.tokens
    start = data.draw(st.integers(0, stream.tokens))
    stop = data.draw(st.integers(start, stream.tokens))
    assert stream.read(start, stop).tolist() == tokens[start:stop].tolist()
    window = stream.window(start, stop)
    assert window.tokens.tolist() == tokens[start:stop].tolist()
    if stop > start:
        assert (window.documents + window.first_document).tolist() == owners[start:stop].tolist()
        mask = owners[start + 1 : stop] == owners[start : stop - 1]
        assert window.loss_mask.tolist() == mask.tolist()


@given(layouts, st.integers(1, 9))
@shared
def test_windows_cover_every_target_once(make_dataset: MakeDataset, layout: list[list[int]], seq_len: int) -> None:
    dataset = make_dataset({("validation", "web"): layout})
    stream = dataset.split("validation").stream("web")
    windows = list(dataset.iter_windows("validation", "web", seq_len))
    targets = [window.start + 1 + offset for window in windows for offset in range(len(window.tokens) - 1)]
    assert targets == list(range(1, stream.tokens))
    assert all(len(window.tokens) == seq_len + 1 for window in windows[:-1])
    read = [token for window in windows for token in window.tokens[1:].tolist()]
    assert read == stream.read(0, stream.tokens)[1:].tolist()
    predicted = sum(int(window.loss_mask.sum()) for window in windows)
    assert predicted == stream.tokens - stream.documents  # all but each document's first


def test_counts_and_documents_are_those_of_the_shards(make_dataset: MakeDataset) -> None:
    dataset = make_dataset({("train", "web"): [[3, 0], [5]], ("train", "law"): [[7]], ("test", "web"): [[2]]})
    assert dataset.splits == ("test", "train")
    split = dataset.split("train")
    assert split.sizes == {"law": 8, "web": 11}
    assert split.tokens == 19
    web = split.stream("web")
    assert (web.documents, web.bytes, web.units) == (3, 24, 8)
    assert web.languages == {"zh": {"documents": 3, "tokens": 11, "bytes": 24, "units": 8}}
    info = web.document(2)
    assert (info.start, info.stop, info.source, info.lang, info.bytes) == (5, 11, "s2", "zh", 15)
    assert web.find(info.id) == [2]
    with pytest.raises(ValueError, match="outside"):
        web.document(3)
    with pytest.raises(ValueError, match="outside"):
        web.read(0, 12)


def test_unknown_names_are_refused_with_those_there_are(make_dataset: MakeDataset) -> None:
    dataset = make_dataset({("train", "web"): [[3]]})
    with pytest.raises(InputError, match="no validation split") as caught:
        dataset.split("validation")
    assert "train" in caught.value.mend
    with pytest.raises(InputError, match="no domain 'law'") as caught:
        dataset.split("train").stream("law")
    assert "web" in caught.value.mend
    with pytest.raises(InputError, match="no packed dataset here"):
        TokenDataset.open(dataset.path / "train")


def test_another_tokenizer_is_refused(make_dataset: MakeDataset, tokenizer: Tokenizer) -> None:
    dataset = make_dataset({("train", "web"): [[3]]})
    with pytest.raises(InputError, match="packed with tokenizer abababab"):
        dataset.check_tokenizer(tokenizer)


def test_a_shard_of_another_dataset_is_found_out(make_dataset: MakeDataset) -> None:
    dataset = make_dataset({("train", "web"): [[3], [9]]})
    first, second = dataset.path / "train" / "web-00000.tokens", dataset.path / "train" / "web-00001.tokens"
    TokenDataset.open(dataset.path).verify()
    first.write_bytes(second.read_bytes())
    with pytest.raises(CorruptArtifactError, match="not the shard") as caught:
        TokenDataset.open(dataset.path).verify()
    assert "web-00000" in caught.value.where


def test_deep_verification_reads_every_block(make_dataset: MakeDataset) -> None:
    dataset = make_dataset({("train", "web"): [[3], [90]]})
    path = dataset.path / "train" / "web-00001.tokens"
    data = bytearray(path.read_bytes())
    data[150] ^= 1
    path.write_bytes(data)
    TokenDataset.open(dataset.path).verify()
    with pytest.raises(CorruptArtifactError, match="block 0") as caught:
        TokenDataset.open(dataset.path).verify(deep=True)
    assert caught.value.where == str(path)
    (dataset.path / "dataset.json").write_text("{")
    with pytest.raises(CorruptArtifactError, match=r"dataset\.json"):
        TokenDataset.open(dataset.path)


def test_more_shards_than_may_be_open_at_once_are_read(
    make_dataset: MakeDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwater.dataset.dataset.OPEN_SHARDS", 2)
    stream = make_dataset({("train", "web"): [[number] for number in range(7)]}).split("train").domains["web"]
    assert stream.window(0, stream.tokens).documents.tolist() == np.repeat(range(7), range(1, 8)).tolist()
