"""Lines that stand on many pages of a site go from all of them, in Chinese and English, and nothing else does."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.core.artifacts import Artifact
from headwater.core.documents import read_documents
from headwater.curate.attributes import read_rows
from headwater.curate.audit import audit
from headwater.curate.config import CollectConfig, CurateConfig
from headwater.curate.remake import remake
from headwater.curate.site_cuts import chosen_lines, cuts_of
from headwater.curate.site_kernels import BLANK, LINE, split_lines
from headwater.curate.site_lines import FREQUENT, site_of
from tests.curate.helpers import collect, curate, hashes, write_rows

MENU = {"en": "Travel notes of a slow walker", "zh": "慢行者的旅行笔记"}
SLOGAN = {
    "en": "Walking is the slow way to see the country, and we have all the time that there is.",
    "zh": "走路是看这个国家最慢的办法，而我们有的是时间，不着急。",
}
SHORT = {"en": "What I saw:", "zh": "所见："}
WORDS = {
    "en": [
        "river",
        "mountain",
        "village",
        "bridge",
        "market",
        "garden",
        "winter",
        "morning",
        "letter",
        "kitchen",
        "sea",
    ],
    "zh": list("山水村桥市园冬晨信厨船师果港路云雨雪花鸟鱼石木火灯窗门书画茶酒饭衣鞋帽伞车马牛羊"),
}


def body(lang: str, seed: int) -> str:
    """A paragraph that no other seed gives."""
    draw = random.Random(f"{lang}{seed}")
    if lang == "zh":
        return "。".join("".join(draw.choices(WORDS["zh"], k=14)) for _ in range(4)) + "。"
    return " ".join(f"The {' '.join(draw.choices(WORDS['en'], k=9))} was there." for _ in range(4))


def page(lang: str, seed: int) -> str:
    parts = [MENU[lang], "", body(lang, 3 * seed), SHORT[lang], body(lang, 3 * seed + 1), SLOGAN[lang]]
    return "\n".join([*parts, body(lang, 3 * seed + 2), "", SLOGAN[lang]])


def without_lines(lang: str, seed: int) -> str:
    return "\n".join([body(lang, 3 * seed), SHORT[lang], body(lang, 3 * seed + 1), body(lang, 3 * seed + 2)])


CONFIG = CurateConfig(quality={"rules": []}, split={"validation": 0.0}, canaries={"documents": 0})


def rows(pages: int = 12) -> list[dict[str, Any]]:
    found = [
        {"text": page(lang, seed), "url": f"https://www.{lang}.example/{seed}"}
        for lang in ("en", "zh")
        for seed in range(pages)
    ]
    found += [{"text": page("en", 1000 + n), "url": f"http://s{n}.example/"} for n in range(12)]  # of twelve sites
    found += [{"text": page("zh", 2000 + n)} for n in range(12)]  # of no site
    found += [{"text": page("en", 3000 + n), "url": "http://one.example/x"} for n in range(12)]  # one address
    return found


def corpus_of(folder: Path, found: list[dict[str, Any]], config: CurateConfig = CONFIG, **collecting: Any) -> Artifact:
    write_rows(folder / "web.jsonl", found)
    source = {"name": "web", "paths": ["web.jsonl"]}
    return curate(
        folder / "w", collect(folder / "w", CollectConfig(root=str(folder), sources=(source,), **collecting)), config
    )


def texts(corpus: Artifact) -> dict[str, str]:
    return {
        document.url: document.text
        for name in corpus.files("corpus/")
        for document in read_documents(corpus.file(name))
    }


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return corpus_of(tmp_path_factory.mktemp("sites"), rows())


def test_lines_of_a_site_go_from_all_its_pages_and_from_no_others(corpus: Artifact) -> None:
    found = texts(corpus)
    for lang in ("en", "zh"):
        for seed in range(12):
            assert found[f"https://www.{lang}.example/{seed}"] == without_lines(lang, seed)
    assert all(SLOGAN["en"] in found[f"http://s{n}.example/"] for n in range(12))
    assert SLOGAN["zh"] in found[""]
    assert SLOGAN["en"] in found["http://one.example/x"]


def test_every_cut_names_another_page_with_the_line_and_how_many_there_are(corpus: Artifact) -> None:
    cuts = [row for row in read_rows(corpus.file("removed.parquet")) if row["rule"] == "site.line"]
    assert len(cuts) == 24 * 3
    assert {row["action"] for row in cuts} == {"cut"}
    assert {row["detail"] for row in cuts} == {"on 12 of 12 pages of the site"}
    assert all(row["kept_id"] != row["id"] and len(row["spans"]) == 1 for row in cuts)
    replayed = audit(corpus.path, sample=100, rules=["site.line"])
    assert (replayed["replayed"], replayed["false"]) == (72, 0)


def test_counts_still_add_up(corpus: Artifact) -> None:
    counts = corpus.counts
    assert counts["cut"]["site.line"]["documents"] == 24
    for field in ("bytes", "units"):
        lost = sum(row[field] for row in counts["dropped"].values()) + counts["cut"]["site.line"][field]
        assert counts["in"][field] == counts[field] + lost + counts["edited"][field]


def test_the_rule_can_be_undone(corpus: Artifact) -> None:
    assert texts(remake(corpus, undo=["site.line"]))["https://www.zh.example/3"] == page("zh", 3)


def test_shards_ranges_and_workers_change_nothing(corpus: Artifact, tmp_path: Path) -> None:
    small = CONFIG.model_copy(update={"site_lines": CONFIG.site_lines.model_copy(update={"lines_in_memory": 7})})
    other = corpus_of(tmp_path, rows(), small, shard_bytes=5000)
    assert {k: v for k, v in hashes(other).items() if k.startswith("corpus/")} == {
        k: v for k, v in hashes(corpus).items() if k.startswith("corpus/")
    }


def test_copies_of_one_page_do_not_make_its_lines_frequent(tmp_path: Path) -> None:
    same = [{"text": page("en", 1) + f"\nPrinted copy {n}", "url": f"http://a.example/{n}"} for n in range(20)]
    (kept,) = texts(corpus_of(tmp_path, same)).values()
    assert kept.startswith(page("en", 1))


def test_headings_code_and_pages_of_nothing_else_stay(tmp_path: Path) -> None:
    lines = ["# " + SLOGAN["en"], "```", SLOGAN["en"], "```", "---", "-----"]
    found = [{"text": "\n".join([*lines, body("en", n), *lines]), "url": f"http://a.example/{n}"} for n in range(15)]
    bare = [{"text": MENU["zh"] + "\n" + SLOGAN["zh"] + f"\n{n}", "url": f"http://b.example/{n}"} for n in range(15)]
    kept = texts(corpus_of(tmp_path, found + bare))
    assert all(kept[row["url"]] == row["text"] for row in found)
    assert all(text.startswith(MENU["zh"]) for url, text in kept.items() if "b.example" in url)


@pytest.mark.parametrize(
    ("url", "site"),
    [
        ("https://www.Example.com:8080/a?b#c", "example.com"),
        ("//user:secret@例子.中国/路径", "例子.中国"),
        ("http://example.com.", "example.com"),
        ("mailto:someone", ""),
        ("nonsense", ""),
        ("", ""),
    ],
)
def test_a_site_is_the_host_of_an_address(url: str, site: str) -> None:
    assert site_of(url) == site


alphabet = st.sampled_from(["a", "字", "é", " ", "\n", "\n", "#", "`", "😀", "菜单", "menu item", "-"])


@given(st.lists(alphabet, max_size=40).map("".join), st.integers(0, 2**30))
def test_cuts_lie_between_characters_and_lines_and_leave_the_rest(text: str, seed: int) -> None:
    data = text.encode()
    lines = split_lines(np.frombuffer(data, np.uint8), np.array([0, len(data)]), np.zeros(1, np.uint64))
    plain = text.split("\n") if not text.endswith("\n") else text.split("\n")[:-1]
    assert [data[line["start"] : line["end"]].decode() for line in lines] == [p.strip(" \t") for p in plain if text]
    assert [text[line["characters"] :][: line["length"]] for line in lines] == [p.strip(" \t") for p in plain if text]
    draw = random.Random(seed)
    often = np.array([draw.random() < 0.5 for _ in lines], bool) & (lines["kind"] == LINE)
    chosen = chosen_lines(lines, often, 1.5)
    found = np.zeros(len(lines), FREQUENT)
    cuts = cuts_of(data, 0, 5, 9, lines, chosen, found)
    left, at = b"", 0
    for cut in cuts:
        assert cut["start"] >= at
        left += data[at : cut["start"]]
        at = int(cut["end"])
    left = (left + data[at:]).decode()
    stays = [
        p.strip(" \t")
        for p, gone, line in zip(plain, chosen, lines, strict=False)
        if not gone and line["kind"] != BLANK
    ]
    assert [line.strip(" \t") for line in left.split("\n") if line.strip(" \t")] == stays
