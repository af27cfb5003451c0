import re

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headwater.core.units import class_table, count_plainly, count_units


def test_chinese_counts_characters_and_english_counts_words() -> None:
    assert count_units("今天天气很好。") == 6
    assert count_units("The weather is fine today.") == 5
    assert count_units("用Python写code") == 4
    assert count_units("，。！？ \n\t--- …") == 0
    assert count_units("") == 0


def test_apostrophes_and_decimal_points_do_not_split() -> None:
    assert count_units("Don't") == count_units("Don’t") == 1
    assert count_units("3.14") == count_units("1,000,000") == 1
    assert count_units("end.Start") == 2
    assert count_units("'quoted' 5.") == 2
    assert count_units("snake_case") == 1


def test_kana_and_hangul_count_characters() -> None:
    assert count_units("안녕하세요 세계") == 7
    assert count_units("ひらがなカタカナ") == 8


@given(st.text())
def test_units_of_two_texts_with_a_space_between_add_up(text: str) -> None:
    assert count_units(text + " " + text) == 2 * count_units(text)


@given(st.text(alphabet="ab12 中文。\n"))
def test_units_agree_with_a_regular_expression(text: str) -> None:
    assert count_units(text) == len(re.findall(r"[中文]|[ab12]+", text))


@given(st.text(alphabet=st.one_of(st.characters(), st.sampled_from("ab1'’.,_中あ가é\u0301🙂 "))))
def test_compiled_and_plain_counting_agree(text: str) -> None:
    from headwater.core.unit_kernel import count_bytes

    data = np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8)
    assert count_bytes(data, class_table()) == count_plainly(text) == count_units(text) == count_units(data.tobytes())
