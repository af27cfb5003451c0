"""Wikipedia dumps: articles as a reader reads them, in Chinese and English; a broken page costs itself alone."""

from __future__ import annotations

import bz2
import time
from pathlib import Path
from xml.sax.saxutils import escape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.curate.config import SourceConfig
from headwater.curate.readers import read_file
from headwater.curate.readers.wikitext import wikitext_to_text
from headwater.curate.records import Bad, Record, Skipped
from headwater.curate.sources import source_files

HEAD = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" xml:lang="zh"><siteinfo>
<sitename>Wikipedia</sitename><dbname>zhwiki</dbname><base>https://zh.wikipedia.org/wiki/Main_Page</base></siteinfo>
"""


def page(title: str, text: str, namespace: int = 0, extra: str = "") -> str:
    return (
        f"<page>\n<title>{escape(title)}</title><ns>{namespace}</ns><id>7</id>{extra}<revision><id>9</id>"
        f'<text bytes="{len(text)}" xml:space="preserve">{escape(text)}</text></revision>\n</page>\n'
    )


def read(path: Path, **settings: object) -> list[object]:
    source = SourceConfig(name="wiki", kind="wikipedia", paths=(path.name,), **settings)  # type: ignore[arg-type]
    return [item for file in source_files(source, path.parent) for item in read_file(file, source)]


def test_a_multistream_dump_gives_its_articles(tmp_path: Path) -> None:
    pages = [
        page("数学", "'''数学'''是[[科学|学科]]。{{Infobox|a={{b}}}}"),
        page("Talk:数学", "talk", namespace=1),
        page("算术", "#REDIRECT [[数学]]", extra='<redirect title="数学" />'),
        page("A & B", "Text &amp; more <ref>gone</ref>."),
        page("空", "{{only|a template}}"),
    ]
    path = tmp_path / "zhwiki-pages-articles-multistream.xml.bz2"
    streams = [HEAD, "".join(pages[:2]), "".join(pages[2:]), "</mediawiki>"]
    path.write_bytes(b"".join(bz2.compress(text.encode()) for text in streams))
    items = read(path)
    records = [item for item in items if isinstance(item, Record)]
    assert [record.text for record in records] == ["# 数学\n\n数学是学科。", "# A & B\n\nText & more."]
    assert records[0].url == "https://zh.wikipedia.org/wiki/%E6%95%B0%E5%AD%A6"
    assert {(record.lang, record.license) for record in records} == {("zh", "CC-BY-SA-4.0")}
    assert records[0].position == len(HEAD.encode())
    assert sum(isinstance(item, Skipped) for item in items) == 2
    assert [item.reason for item in items if isinstance(item, Bad)] == ["no-text"]


def test_a_broken_page_and_a_cut_dump_cost_only_themselves(tmp_path: Path) -> None:
    good = [page(f"页{n}", f"第{n}页的内容。" * 30) for n in range(6)]
    data = (HEAD + "".join(good)).encode()
    bad = data.replace("第2页".encode(), b"\xff\xfe" + "第2页".encode(), 1).replace(
        "<title>页4</title>".encode(), b"", 1
    )
    (tmp_path / "a.xml").write_bytes(bad)
    items = read(tmp_path / "a.xml")
    assert [i.meta["title"] for i in items if isinstance(i, Record)] == ["页0", "页1", "页3", "页5"]
    assert [i.reason for i in items if isinstance(i, Bad)] == ["bad-utf8", "bad-record"]
    packed = bz2.compress(HEAD.encode()) + b"".join(bz2.compress(text.encode()) for text in good)
    (tmp_path / "cut.xml.bz2").write_bytes(packed[:-30])
    items = read(tmp_path / "cut.xml.bz2")
    assert sum(isinstance(item, Record) for item in items) == 5
    assert [item.reason for item in items if isinstance(item, Bad)][-1] == "truncated"


def test_a_page_above_the_cap_is_not_held(tmp_path: Path) -> None:
    (tmp_path / "a.xml").write_text(HEAD + page("大", "字" * 1_500_000) + page("小", "短短的一页。"), "utf-8")
    items = read(tmp_path / "a.xml", max_document_bytes=100_000)
    assert [item.text for item in items if isinstance(item, Record)] == ["# 小\n\n短短的一页。"]
    assert [item.reason for item in items if isinstance(item, Bad)] == ["too-large"]


def test_what_is_no_dump_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "a.xml").write_text("<html>no dump</html>")
    assert [item.reason for item in read(tmp_path / "a.xml")] == ["wrong-format"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("wikitext", "text"),
    [
        ("'''Water''' is [[liquid|wet]]{{cn}}.<ref>A [[book]]</ref><ref name=x />", "Water is wet."),
        ("a [[File:x.png|thumb|a [[b]] c]] d [[Category:X]][[en:Water]]", "a d"),
        ("-{zh-hans:计算机;zh-hant:電腦;}-和-{A|zh-cn:软件;zh-tw:軟體}-，-{原样}-。", "计算机和软件，原样。"),
        ("{| class=x\n|-\n| a || {{b|c}}\n|}\nafter", "after"),
        ("x <math>a < b</math> <nowiki>[[y]]</nowiki>", "x $a < b$ [[y]]"),
        (
            "== A ==\none\n=== B ===\n{{gone}}\n== 参考文献 ==\n* x\n=== y ===\nz\n== C ==\ntwo",
            "## A\none\n\n## C\ntwo",
        ),
        ("* a\n** b\n# c\n: d\n; e", "- a\n- b\n- c\nd\ne"),
        ("数学（{{lang-en|Mathematics}}，{{IPA|x}}）", "数学（Mathematics）"),
        ("[http://a.b/c shown] and [http://a.b/c]", "shown and"),
        ("{{unclosed\nmore\n\nkept ]] }- |} x", "kept }- |} x"),
        ("a<!-- b --> c<br/>d __NOTOC__", "a c\nd"),
    ],
)
def test_wikitext_reads_as_its_page_does(wikitext: str, text: str) -> None:
    assert wikitext_to_text(wikitext) == text


@given(st.text(st.sampled_from("{}[]|-'=<>/!ref中a \n*#:;"), max_size=80))
def test_no_wikitext_is_too_broken_to_read(wikitext: str) -> None:
    text = wikitext_to_text(wikitext)
    assert "\ue000" not in text
    assert text == text.strip()


@pytest.mark.parametrize("mark", ["{{a|", "[[a|", "-{", "<ref>", "{|\n", "<!--", "'''", "<math>", "( ,"])
def test_marks_repeated_without_end_take_linear_time(mark: str) -> None:
    started = time.process_time()
    wikitext_to_text(mark * 40_000)
    assert time.process_time() - started < 5
