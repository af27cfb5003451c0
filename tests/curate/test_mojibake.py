"""Text that was decoded with the wrong table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.curate.clean import clean_document
from headwater.curate.mojibake import repair

CHINESE = "你好，世界。我们今天去公园散步，看到了很多花，真的是非常漂亮的一天。"


def as_windows(text: str) -> str:
    """UTF-8 read as Windows-1252, as browsers do: bytes without a sign become controls."""
    return "".join(bytes([byte]).decode("cp1252", "ignore") or chr(byte) for byte in text.encode())


@pytest.mark.parametrize(
    "text", ["don’t — “café” naïve", CHINESE, "ёлка и снег", "España, Übermut, ça", "😀 ok €5", "×·°"]
)
def test_utf8_read_as_windows_is_put_right_even_twice(text: str) -> None:
    assert repair(as_windows(text))[0] == text
    assert repair(as_windows(as_windows(text)))[0] == text


def test_gbk_read_as_latin_is_put_right() -> None:
    assert repair(CHINESE.encode("gbk").decode("latin-1")) == (CHINESE, 1)


def test_utf8_read_as_gbk_is_put_right_where_no_byte_was_lost() -> None:
    text = "不是的，这里有很多人"
    assert text.encode().decode("gbk") == "涓嶆槸鐨勶紝杩欓噷鏈夊緢澶氫汉"
    assert repair("涓嶆槸鐨勶紝杩欓噷鏈夊緢澶氫汉") == (text, 1)


@pytest.mark.parametrize(
    "text",
    [
        "Ça va très bien, déjà vu, à la carte; NAÏVE ÉCOLE, ÂGE, Ã is a letter",
        "7×—across, 5°—10°, «guillemets» and ¿qué? ¡sí! §4 ¶2 £5 ±3",
        "São Paulo, AÇÃO, IRMÃO; ÃO",
        "Größe: 5µm²; naïve façade",
        CHINESE,
        "依韻和章樞密景靈宫奉安列聖神御，鐨字与锛字是生僻字",
        "日本語のテキストです。한국어 텍스트입니다.",
        "Русский текст, ещё ёлка",
        "plain ascii",
        "",
    ],
)
def test_text_that_is_right_stays(text: str) -> None:
    assert repair(text) == (text, 0)


@given(st.text(st.sampled_from("aé ÃÂâ€™œ\x9d¤©ä½\xa0鐨勬槸锛屾我们的，\x80\xff"), max_size=60))
def test_repairing_twice_changes_nothing_more(text: str) -> None:
    once, _ = repair(text)
    for _ in range(8):  # a repair may make another possible; it ends
        again, runs = repair(once)
        if not runs:
            break
        once = again
    assert repair(once) == (once, 0)


def test_cleaning_repairs_prose_and_counts_it_but_no_code() -> None:
    wrong = as_windows("Don’t go there — it’s late, and the dog’s asleep.")
    cleaned = clean_document(wrong, lang="en")
    assert cleaned.text == "Don’t go there — it’s late, and the dog’s asleep."
    assert cleaned.edits == {"mojibake": 4}
    assert clean_document(f"x = '{wrong}'", lang="python").text == f"x = '{wrong}'"


@pytest.mark.parametrize("piece", ["Ã", "â€", "鐨锛", "ÄãºÃ", "Ã©"])
def test_a_million_repeats_take_linear_time(piece: str) -> None:
    repair(piece * (1_000_000 // len(piece)))
