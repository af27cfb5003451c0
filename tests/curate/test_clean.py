import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headwater.curate import clean_document, clean_text
from headwater.curate.clean import MARKUP, TOO_SHORT, WRONG_LANGUAGE
from headwater.curate.config import CleanConfig, CurateConfig

ANY = CurateConfig(clean=CleanConfig(min_characters=0), language={"accepted": []})


def cleaned(text: str, **options: str) -> str:
    """The cleaned text whatever its length and language."""
    result = clean_document(text, config=ANY, **options)
    assert result.text is not None
    return result.text


def test_tags_scripts_and_comments_go_and_the_words_stay() -> None:
    html = "<div class='a'><script>alert(1)</script><p>今天天气<b>很好</b>。</p><!-- no --><style>p{}</style>走吧</div>"
    assert cleaned(html) == "今天天气很好。\n\n走吧"
    assert cleaned("a<br>b<br/>c") == "a\nb\nc"
    assert cleaned("<table><tr><td>x</td><td>y</td></tr></table>") == "x y"
    assert cleaned('<x-note a="1">custom</x-note> &nbsp;tail') == "custom tail"


@pytest.mark.parametrize(
    "text",
    [
        "if a < b and c > d then",
        "List<String> names and Map<Key, Value>",
        "#include <stdio.h>",
        "write to <me@example.org> or <https://example.org/a?b=1&c=2>",
        "x <b and c> y",
        "AT&T; R&D",
        "use `<div class='x'>` here",
        "```html\n<div>  &amp;  </div>\n```",
    ],
)
def test_what_only_looks_like_html_stays(text: str) -> None:
    assert cleaned(text) == text


def test_entities_are_decoded_unless_that_would_make_a_tag() -> None:
    assert cleaned("Q&amp;A, 5 &lt; 6, &#8220;so&#8221;") == "Q&A, 5 < 6, “so”"
    assert cleaned("write &lt;b&gt; for bold") == "write &lt;b> for bold"


def test_a_whole_page_goes_through_main_content_extraction() -> None:
    story = "<p>" + "The river rose over night and the mill stood in water. " * 8 + "</p>"
    page = (
        f"<!doctype html><html><body><nav><a href=/>Home</a><a href=/b>News</a></nav><main>{story}</main></body></html>"
    )
    assert cleaned(page).startswith("The river rose")
    assert "Home" not in cleaned(page)


def test_full_width_letters_digits_and_spaces_fold_and_chinese_punctuation_stays() -> None:
    assert cleaned("Ａｂｃ１２３　％＝（你好），！？：；～") == "Abc123 %=（你好），！？：；～"
    assert cleaned("比例为５０．５％。") == "比例为50.5%。"


def test_ascii_punctuation_between_chinese_characters_becomes_chinese() -> None:
    text = "结果表明,所制备的材料性能好.他说:“对!”是吗?好;走"
    assert cleaned(text) == "结果表明，所制备的材料性能好。他说：“对!”是吗？好；走"
    assert cleaned("第一行.\n第二行,\n第三行") == "第一行。\n第二行，\n第三行"
    assert cleaned("中文, 中文") == "中文，中文"


@pytest.mark.parametrize(
    "text",
    [
        "价格是1,234.5元",
        "版本v1.2,3号",
        "参见 https://example.com/中,文.html 吧",
        "用`变量.属性,值`来写",
        "English, with 中文 inside. Done",
        "これは日本語の文章です.とても良い,そうですね",
    ],
)
def test_numbers_addresses_code_latin_and_japanese_keep_their_punctuation(text: str) -> None:
    assert cleaned(text) == text


def test_control_and_invisible_characters_go_and_line_ends_become_newlines() -> None:
    assert cleaned("a\x00b\x07c\u200bd\ufeffe\xadf") == "abcdef"
    assert cleaned("one\r\ntwo\rthree\u2028four") == "one\ntwo\nthree\nfour"
    assert cleaned("👩\u200d🚀 می\u200cخواهم") == "👩\u200d🚀 می\u200cخواهم"
    assert cleaned("\ud800x") == "x"


def test_white_space_is_tidied_but_list_indentation_stays() -> None:
    assert cleaned("  a  b\t\tc  \n\n\n\n- d\n    - e   f\n") == "a b c\n\n- d\n    - e f"
    assert cleaned("　　第一段。\n　　第二段。") == "第一段。\n第二段。"


def test_compatibility_characters_are_not_normalised() -> None:
    text = "ﬁne Ⅳ ① ㎏ ½ … x² ，！？"
    assert cleaned(text) == text


def test_code_keeps_its_indentation_and_inner_spaces() -> None:
    code = "\ufeff\n\ndef f():\r\n\tif a  <  b:   \r\n\t\treturn '１２，<b>'\r\n\x0c\n\n"
    expected = "def f():\n\tif a  <  b:\n\t\treturn '１２，<b>'\n\x0c"
    assert cleaned(code, lang="python") == cleaned(code, domain="code") == expected


def test_fewer_than_20_characters_are_dropped_and_20_are_kept() -> None:
    short, enough = "今天天气很好我们去公园散步了吧今天天", "今天天气很好我们去公园散步了吧今天天气好"
    assert (len(short), len(enough)) == (18, 20)
    assert clean_text(short) is None
    assert clean_text(enough) == enough
    result = clean_document(short)
    assert (result.rule, result.version, result.score) == (TOO_SHORT, 1, 18)


def test_the_wrong_language_is_dropped_with_the_shares_that_decided() -> None:
    english = "The quick brown fox jumps over the lazy dog near the river."
    assert clean_text(english, lang="zh") is None
    assert clean_text(english, lang="en") == english
    german = clean_document("Der schnelle braune Fuchs springt über den faulen Hund und läuft dann weiter.")
    assert german.text is None
    assert (german.rule, german.lang) == (WRONG_LANGUAGE, "de")
    assert "de" in german.detail


def test_mixed_chinese_and_english_passes_when_both_are_accepted() -> None:
    mixed = "我们用 transformer 模型 to train the language model 然后评估 it on the held out data 结果不错 and stable"
    result = clean_document(mixed)
    assert result.text == mixed
    assert result.lang in ("zh", "en")


def test_texts_of_no_clear_language_keep_the_claimed_one_unless_the_script_speaks_against_it() -> None:
    names = "torch.linalg.norm(x, out=y) d2l.plt.plot(test_x)"
    assert clean_document(names, lang="en").lang == "en"
    assert clean_document(names, lang="zh").lang != "zh"
    german = "Der schnelle braune Fuchs springt über den faulen Hund und läuft dann weiter."
    assert clean_text(german, lang="en") is None


def test_digits_and_signs_alone_keep_the_claimed_language() -> None:
    assert clean_document("1 2 3 4 5 6 7 8 9 10 11 12 13", lang="zh").lang == "zh"
    assert clean_document("1 2 3 4 5 6 7 8 9 10 11 12 13").rule == WRONG_LANGUAGE


def test_switches_turn_off_what_they_say() -> None:
    off = CurateConfig(
        clean={"html": False, "width": False, "punctuation": False, "min_characters": 0}, language={"accepted": []}
    )
    text = "<b>中文</b>,中文Ａ"
    assert clean_document(text, config=off).text == text
    assert clean_document("<p>kept as text</p>", config=ANY, extracted=True).text == "<p>kept as text</p>"


def test_html_in_html_is_undone_and_endless_nesting_is_dropped_not_looped() -> None:
    assert cleaned("&amp;amp;nbsp;Tom&amp;#39;s <b<b>>x</b</b>> cat") == "Tom's x cat"
    assert cleaned("&" + "amp;" * 1000 + "lt; 5") == "< 5"
    result = clean_document("<b" * 30 + ">" * 30, config=ANY)
    assert (result.text, result.rule) == (None, MARKUP)


MARKUP_PIECES = """<b> </b> <p_class='x'> <br/> <!-- --> <script> </script> < > &lt; &amp; &nbsp; &#60; ＜b＞ ＆ ` ```
~~~ <!doctype_html> <html> <td>"""
TEXT_PIECES = "中 文字 ， , . 。 ； ; : ? ! “ ” （ Ａ１ ％ ． の 한 ü http://a.b/c,中 1,234.5 word The of -_ #_"
SPACES = ["\n", "\n\n\n", "\r\n", "\t", "  ", " ", "    ", "　", "\u200b", "\x00", "\xa0"]
PIECES = st.sampled_from([piece.replace("_", " ") for piece in (MARKUP_PIECES + " " + TEXT_PIECES).split()] + SPACES)


@settings(max_examples=400)
@given(st.lists(PIECES, max_size=25).map("".join))
@example("　```\nA,\n```\nB  x\n```\n中,文")
@example("中,  文 \n")
@example("&amp;lt;b>")
@example("```\n<b>\n~~~\n&amp;")
def test_cleaning_twice_changes_nothing_more(text: str) -> None:
    once = clean_document(text, config=ANY)
    if once.text is not None:
        assert clean_document(once.text, config=ANY).text == once.text


@settings(max_examples=150)
@given(st.text(max_size=60))
def test_cleaning_any_text_twice_changes_nothing_more(text: str) -> None:
    once = cleaned(text)
    assert cleaned(once) == once
    code = cleaned(text, lang="python")
    assert cleaned(code, lang="python") == code
    once.encode()


@pytest.mark.parametrize(
    "piece", ["<b", "<!--", "<script>", "&amp;", "`", "```\n", " ", "\t\n", "中,", "<p a=1 ", "</"]
)
def test_a_million_repeats_take_linear_time(piece: str) -> None:
    text = piece * (400_000 // len(piece))
    start = time.process_time()
    clean_document(text, config=ANY)
    assert time.process_time() - start < 5


def test_a_backtick_without_a_partner_beside_personal_data_is_no_endless_matter() -> None:
    found = clean_document(
        "Call me `tomorrow at 13812345678 please, there is no closing mark in this sentence.", lang="en"
    )
    assert found.text is not None
    assert "[PHONE]" in found.text
    assert found.edits["phone"] == 1
