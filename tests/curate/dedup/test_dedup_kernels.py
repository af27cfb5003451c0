"""The compiled kernels agree with plain Python on any text."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.core.units import count_units
from headwater.curate.dedup import compare
from headwater.curate.dedup.folding import POINT_MASK, fold_table, traditional_pairs
from headwater.curate.dedup.minhash import BANDS, ROWS, arrow_views, donors, minhash_keys, minhash_keys_of
from headwater.curate.dedup.simhash import block_keys, simhash_of
from headwater.curate.dedup.spool import sort_ids
from headwater.curate.dedup.tokens import scratch, tokenize, unit_hashes, utf8

from . import reference

# Letters, digits, joints, accents, Han of both planes, kana, Hangul, full width, emoji, spaces, and anything else.
PIECES = st.sampled_from(
    [
        *"aZé_0９Ａ.,'’! \n\t-", "don't", "1,234.5", "foo_bar", "中", "國", "𠮷", "カ", "ﾊ", "한", "Ω", "न", "ि",
        "\u0301", "🙂", "ß", "İ", "豈", "。", "　", "“",
    ]
)  # fmt: skip
TEXTS = st.lists(PIECES | st.characters(exclude_categories=["Cs", "M"]), max_size=60).map("".join)


@given(TEXTS)
@settings(max_examples=300)
def test_units_are_those_of_plain_python(text: str) -> None:
    expected = reference.units(text)
    hashes, starts, ends = unit_hashes(text)
    data = text.encode()
    assert [(data[a:b].decode()) for a, b in zip(starts, ends, strict=True)] == [text[a:b] for _, a, b in expected]
    seen: dict[str, int] = {}
    for (unit, _, _), value in zip(expected, hashes.tolist(), strict=True):
        assert seen.setdefault(unit, value) == value
    assert len(set(seen.values())) == len(seen)


@given(TEXTS.filter(lambda text: not any(ch in text for ch in ("\u0301", "ि"))))
def test_units_are_counted_as_everywhere_else(text: str) -> None:
    assert unit_hashes(text)[0].size == count_units(text)


@given(st.binary(max_size=80))
def test_bytes_that_are_no_utf8_do_no_harm(data: bytes) -> None:
    array = np.frombuffer(bytearray(data), np.uint8)
    hashes, starts, ends = scratch(len(data))
    count = tokenize(array, 0, len(data), fold_table(False), hashes, starts, ends)
    assert 0 <= count <= hashes.size
    assert all(0 <= a < b <= len(data) for a, b in zip(starts[:count], ends[:count], strict=True))


def test_lone_surrogates_are_read() -> None:
    assert unit_hashes("one \ud800 two")[0].size == 2


NEAR = st.lists(st.sampled_from(["a", "b", "c", "中", "文", "字", "x y", "?"]), max_size=40).map(" ".join)


@given(NEAR, NEAR, st.integers(1, 6))
@settings(max_examples=300)
def test_jaccard_is_that_of_plain_python_sets(first: str, second: str, width: int) -> None:
    assert compare.jaccard(first, second, width=width) == pytest.approx(reference.jaccard(first, second, width))


@given(NEAR, NEAR)
def test_compiled_and_plain_comparison_agree(first: str, second: str) -> None:
    data, offsets = arrow_views(pa.array([first, second], pa.large_string()))
    rows = np.array([0], np.int64), np.array([1], np.int64)
    longest = max(len(first.encode()), len(second.encode()))
    scores = np.zeros(1)
    places = compare.places_for(longest // 2 + 1)
    compare.compare_pairs(
        data, offsets, fold_table(False), 5, 0, *rows, *scratch(longest), np.empty((2, places), np.uint64),
        np.zeros((2, places), np.int32), scores,
    )  # fmt: skip
    assert scores[0] == compare.score_pairs(data, offsets, *rows, width=5, simplify=False)[0]


@given(NEAR, NEAR)
@settings(max_examples=300)
def test_spans_hold_the_same_units_on_both_sides(kept: str, removed: str) -> None:
    data, offsets = arrow_views(pa.array([kept, removed], pa.large_string()))
    rows = np.array([0], np.int64), np.array([1], np.int64)
    spans, totals = compare.span_arrays(data, offsets, *rows, width=3, most=50)
    for start, end, kept_start, kept_end in spans[0, : totals[0]].tolist():
        if reference.shingles(kept, 3) and reference.shingles(removed, 3) and kept != removed:
            here = [unit for unit, _, _ in reference.units(removed[start:end])]
            assert here == [unit for unit, _, _ in reference.units(kept[kept_start:kept_end])]
            assert len(here) >= 3
    if totals[0] and kept != removed:
        both = reference.shingles(kept, 3) & reference.shingles(removed, 3)
        assert bool(both) == (totals[0] > 0) or not reference.shingles(kept, 3) or not reference.shingles(removed, 3)


@given(st.lists(TEXTS, min_size=1, max_size=5))
@settings(max_examples=50)
def test_minhash_keys_are_those_of_plain_python(texts: list[str]) -> None:
    keys, units = minhash_keys(pa.array(texts, pa.large_string()), simplify=False)
    bins = BANDS * ROWS
    orders = donors(bins).tolist()
    for number, text in enumerate(texts):
        hashes = [int(value) for value in unit_hashes(text, simplify=False)[0]]
        assert units[number] == len(hashes)
        if len(hashes) < 5:
            assert not keys[1:, number].any()
            continue
        least: dict[int, int] = {}
        for at in range(len(hashes) - 4):
            rolling = 0
            for value in hashes[at : at + 5]:
                rolling = (rolling * 0xD6E8FEB86659FD93 + value) & reference.MASK
            spread = reference.mix(rolling)
            place = (spread >> 32) * bins >> 32
            least[place] = min(least.get(place, 1 << 32), spread & 0xFFFFFFFF)
        minima = [
            least[place] if place in least else least[next(other for other in orders[place] if other in least)]
            for place in range(bins)
        ]
        for band in range(BANDS):
            key = band + 1
            for value in minima[band * ROWS : (band + 1) * ROWS]:
                key = reference.mix((key * 0x9E3779B97F4A7C15 + value) & reference.MASK)
            assert key == int(keys[band, number])


def test_keys_do_not_depend_on_what_stands_beside_a_document() -> None:
    texts = ["the quick brown fox jumps over the lazy dog", "", "敏捷的棕色狐狸跳过懒狗的背", "short"]
    together, _ = minhash_keys(pa.array(texts, pa.large_string()))
    for number, text in enumerate(texts):
        alone, _ = minhash_keys(pa.array(["x y z", text], pa.large_string()).slice(1))
        assert np.array_equal(alone[:, 0], together[:, number])


def test_nothing_gives_nothing() -> None:
    keys, units = minhash_keys(pa.array([], pa.large_string()))
    assert keys.shape == (BANDS, 0)
    assert units.size == 0
    assert minhash_keys_of(utf8(""), np.zeros(2, np.int64))[1].tolist() == [0]


def test_simhash_of_close_texts_is_close() -> None:
    first = " ".join(f"word{n}" for n in range(300))
    texts = pa.array([first, first.replace("word7 ", "other "), "entirely different text " * 20], pa.large_string())
    bits = simhash_of(*arrow_views(texts))
    distances = [int(bits[0] ^ other).bit_count() for other in bits[1:]]
    assert distances[0] <= 6 < distances[1]
    assert block_keys(bits).shape == (10, 3)


@given(st.integers(0, reference.MASK), st.sets(st.integers(0, 63), max_size=3))
def test_simhashes_three_bits_apart_share_a_key(bits: int, flips: set[int]) -> None:
    other = bits
    for flip in flips:
        other ^= 1 << flip
    keys = block_keys(np.array([bits, other], np.uint64))
    assert (keys[:, 0] == keys[:, 1]).any()


@given(st.lists(st.tuples(st.integers(0, 2), st.binary(max_size=40).map(lambda b: b.replace(b"\0", b"0")))))
def test_ids_are_sorted_as_python_sorts_them(rows: list[tuple[int, bytes]]) -> None:
    data = np.frombuffer(bytearray(b"".join(name for _, name in rows)), np.uint8)
    offsets = np.cumsum([0, *(len(name) for _, name in rows)]).astype(np.int64)
    order = sort_ids(data, offsets, np.array([kind for kind, _ in rows], np.uint8))
    assert order.tolist() == sorted(range(len(rows)), key=lambda row: (*rows[row], row))


def test_traditional_folds_to_simplified_only_if_asked() -> None:
    traditional, simplified = traditional_pairs()
    assert len(traditional) == len(simplified) > 4000
    assert chr(fold_table(True)[ord("國")] & POINT_MASK) == "国"
    assert chr(fold_table(False)[ord("國")] & POINT_MASK) == "國"
    first, second = "臺灣國語與漢語廣東話學習書籍", "台湾国语与汉语广东话学习书籍"
    assert compare.jaccard(first, second, simplify=True) == 1
    assert compare.jaccard(first, second, simplify=False) < 1


def test_full_and_half_width_case_and_emphasis_fold() -> None:
    assert compare.jaccard("ＧＰＴ－４ ｉｓ ａ model of ２０２３", "gpt-4 _is_ a MODEL of 2023!") == 1


def test_short_texts_keep_their_punctuation() -> None:
    assert compare.jaccard("C", "C++") == 0
    assert compare.jaccard("ＯＫ！", "ok!") == 1
    assert compare.jaccard("!!!", "???") == 0
    assert compare.jaccard("好的，谢谢", "好的,谢谢") == 1
