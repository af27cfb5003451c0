from pathlib import Path

import numpy as np
import orjson
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from headwater.curate import CurateConfig, clean_document, detect_language, language_segments, language_shares
from headwater.curate.language import answered, identify, script_counts
from headwater.curate.language_model import _model, _plain_walk

SENTENCES = {
    "zh": "今天天气很好，我们一起去公园散步，然后回家吃饭。",
    "en": "The weather is fine today, so we will walk in the park and then go home.",
    "ja": "今日はとても天気がいいので、公園を散歩してから家に帰ります。",
    "ko": "오늘은 날씨가 아주 좋아서 공원을 산책하고 집에 갑니다.",
    "de": "Heute ist das Wetter sehr schön, deshalb gehen wir im Park spazieren.",
    "fr": "Aujourd'hui il fait très beau, alors nous allons nous promener dans le parc.",
    "es": "Hoy hace muy buen tiempo, así que vamos a pasear por el parque y luego a casa.",
    "ru": "Сегодня очень хорошая погода, поэтому мы пойдём гулять в парк.",
}


@pytest.mark.parametrize("lang", SENTENCES)
def test_a_sentence_is_known_by_its_language(lang: str) -> None:
    found, share = detect_language(SENTENCES[lang])
    assert found == lang
    assert share > 0.9


def test_traditional_characters_and_a_quoted_kana_are_chinese() -> None:
    assert detect_language("依韻和章樞密景靈宫奉安列聖神御，清都鐃吹犯宵寒。")[0] == "zh"
    assert detect_language("这家叫做“优の良品”的店今天开门了，很多人在排队。")[0] == "zh"


def test_mixed_text_has_a_share_for_each_language() -> None:
    shares = language_shares(SENTENCES["zh"] + SENTENCES["en"])
    assert set(shares) == {"zh", "en"}
    assert 0.3 < shares["zh"] < 0.7
    assert sum(shares.values()) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("other", ["ja", "ko"])
def test_chinese_beside_japanese_or_korean_has_its_own_share(other: str) -> None:
    for text in (3 * SENTENCES["zh"] + SENTENCES[other], SENTENCES[other] + "\n" + 3 * SENTENCES["zh"]):
        shares = language_shares(text)
        assert set(shares) == {"zh", other}
        assert 0.6 < shares["zh"] < 0.9


def test_two_alphabets_have_a_share_each_and_names_in_the_other_none() -> None:
    shares = language_shares(2 * SENTENCES["ru"] + " " + SENTENCES["en"])
    assert set(shares) == {"ru", "en"}
    assert 0.4 < shares["ru"] < 0.8
    assert language_shares(SENTENCES["ru"] + " Xqzt Wrbk (Kzrn, Qtx)")["ru"] > 0.99


def test_japanese_and_korean_with_much_han_are_themselves() -> None:
    law = (
        "第一条　国会は国権の最高機関であつて国の唯一の立法機関である。第二章　立法府。衆議院議員候補者名簿を作成する。"
    )
    assert detect_language(law) == ("ja", 1.0)
    assert detect_language("大韓民國(대한민국)의 主權은 國民에게 있고, 모든 權力은 國民으로부터 나온다.") == ("ko", 1.0)


def test_code_blocks_and_addresses_do_not_count() -> None:
    text = (
        SENTENCES["zh"] + "\n```\nthe code is of no concern to that and this for with\n```\nhttps://the.of/and/to/that"
    )
    assert detect_language(text) == ("zh", 1.0)


def test_code_alone_is_judged_by_what_there_is() -> None:
    assert detect_language("```\nThis is the only text that there is in it and it will do.\n```")[0] == "en"


def test_text_without_letters_is_undetermined() -> None:
    assert detect_language("12 + 30 = 42 !!! 😀") == ("und", 0.0)
    assert detect_language("") == ("und", 0.0)


@given(st.text(max_size=200))
def test_shares_are_ordered_and_add_up_to_at_most_one(text: str) -> None:
    shares = list(language_shares(text).values())
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) <= 1.001


@pytest.mark.parametrize(
    ("lang", "words"),
    [
        ("en", "where the water was"), ("de", "nicht nur für dich"), ("fr", "dans une autre maison"),
        ("es", "para todos los niños"), ("ru", "это был мой дом"), ("zh", "明天再说"), ("ja", "それはだめです"),
        ("ko", "내일 봐요"), ("es", "El sistema de archivos"), ("en", "He was here"), ("ru", "что делать"),
    ],
)  # fmt: skip
def test_a_few_words_are_enough(lang: str, words: str) -> None:
    assert detect_language(words)[0] == lang


def test_a_mixed_text_comes_apart_in_segments_without_gaps() -> None:
    text = f"1.\n{SENTENCES['zh']}\n\n{SENTENCES['zh']}\n{SENTENCES['de']}\n```\nx = 1\n```\n{SENTENCES['ja']}"
    segments = language_segments(text)
    assert [segment.lang for segment in segments] == ["zh", "de", "ja"]
    assert "".join(text[segment.start : segment.end] for segment in segments) == text
    assert language_segments("") == []
    assert [segment.lang for segment in language_segments("12\n--\n")] == ["und"]


def test_each_language_may_have_a_threshold_of_its_own() -> None:
    text = SENTENCES["zh"] + SENTENCES["de"]  # about half and half
    for thresholds, rule in (({}, ""), ({"zh": 0.9}, "language.not-accepted"), ({"en": 0.9}, "")):
        config = CurateConfig(language={"accepted": ["zh", "en"], "min_share": 0.3, "thresholds": thresholds})  # type: ignore[arg-type]
        assert clean_document(text, config=config).rule == rule
    with pytest.raises(ValueError, match="not among the accepted"):
        CurateConfig(language={"accepted": ["zh"], "thresholds": {"fr": 0.5}})  # type: ignore[arg-type]


def test_the_compiled_walk_finds_what_the_plain_one_finds() -> None:
    from headwater.curate.language_kernels import walk

    model = _model()
    for sentence in SENTENCES.values():
        data = np.frombuffer(sentence.encode(), np.uint8)
        plain, compiled = np.empty(data.size, np.int64), np.empty(data.size, np.int64)
        count = _plain_walk(data, model.move, model.row, model.output, plain)
        assert walk(data, model.move, model.row, model.output, compiled) == count
        assert (plain[:count] == compiled[:count]).all()


def test_labels_of_real_documents_are_found_again(shared_data: Path) -> None:
    right = total = 0
    for domain in ("books", "papers"):
        with zstandard.open(shared_data / "corpora" / f"{domain}.jsonl.zst", "rb") as file:
            rows = [orjson.loads(line) for line in file.read().split(b"\n")[:300] if line]
        for row in rows:
            total += 1
            right += detect_language(row["text"])[0] == row["lang"]
    assert right / total > 0.98


def test_languages_asked_together_are_those_of_each_text_alone():
    texts = ["Heute ist das Wetter sehr schön, wir gehen in den Park.", "", "今天天气很好", "Il fait beau aujourd'hui.",
             "Сегодня хорошая погода, and we all go to the park together."]  # fmt: skip
    together = answered([identify(text, script_counts(text)) for text in texts])
    assert together == [answered([identify(text, script_counts(text))])[0] for text in texts]
    assert [next(iter(found.shares), "") for found in together] == ["de", "", "zh", "fr", "en"]
