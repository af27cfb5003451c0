"""`headwater curate mix` on files: quotas by domain and language, caps, repeats; and a corpus written for others."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import zstandard
from typer.testing import CliRunner

from headwater.cli.curate_verbs import app
from headwater.core.documents import Document, DocumentWriter, document_id
from headwater.core.errors import InputError, RecipeError, UserError
from headwater.core.units import count_units
from headwater.curate.export import export_corpus
from headwater.pipeline.mix_files import MixOptions, mix_files
from tests.conftest import RunCli


def rows_of(path: Path) -> list[dict[str, str]]:
    return [
        json.loads(line) for line in zstandard.ZstdDecompressor().stream_reader(path.open("rb")).read().splitlines()
    ]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """1,000 units of web and 200 of books, in each of zh and en."""
    lines = []
    for domain, count in (("web", 100), ("books", 20)):
        for number in range(count):
            lines.append({"id": f"{domain}-en-{number}", "domain": domain, "lang": "en", "text": "water " * 10})
            lines.append({"id": f"{domain}-zh-{number}", "domain": domain, "lang": "zh", "text": "水" * 10})
    path = tmp_path / "in.jsonl"
    path.write_text("\n".join(json.dumps(line, ensure_ascii=False) for line in lines) + "\nnot json\n", "utf-8")
    return path


def units(rows: list[dict[str, str]], key: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for row in rows:
        found[row[key]] += count_units(row["text"])
    return found


def test_quotas_of_domains_are_met_and_rows_stay_as_they_are(corpus: Path, tmp_path: Path) -> None:
    report = mix_files([corpus], tmp_path / "out", MixOptions(weights={"web": 0.75, "books": 0.25}))
    kept, removed = rows_of(tmp_path / "out" / "kept.jsonl.zst"), rows_of(tmp_path / "out" / "removed.jsonl.zst")
    assert units(kept, "domain") == {"web": 1200, "books": 400}, "all books, and three times as much of the web"
    given = [json.loads(line) for line in corpus.read_text("utf-8").splitlines()[:-1]]
    assert [row["id"] for row in kept] == [row["id"] for row in given if row in kept], "the input's order"
    assert {row["id"] for row in kept} | {row["id"] for row in removed} == {row["id"] for row in given}
    assert {(row["rule"], row["version"]) for row in removed} == {("mix.quota", 1)}
    assert (report["rows"]["unusable"], report["taken"]) == (1, 1600)
    assert (tmp_path / "out" / "quarantine.jsonl").read_text().count("bad-json") == 1


def test_repeats_stay_below_their_cap_and_what_cannot_be_had_is_refused(corpus: Path, tmp_path: Path) -> None:
    options = MixOptions(weights={"web": 0.5, "books": 0.5}, total=2000, max_repeats={"books": 2.5})
    mix_files([corpus], tmp_path / "out", options)
    kept = rows_of(tmp_path / "out" / "kept.jsonl.zst")
    assert units(kept, "domain") == {"web": 1000, "books": 1000}
    assert max(Counter(row["id"] for row in kept if row["domain"] == "books").values()) == 3
    short = MixOptions(weights={"web": 0.5, "books": 0.5}, total=2000, max_repeats={"books": 2})
    with pytest.raises(RecipeError, match=r"'books/en' would give 500 units, but has 200 and may be read 2 times"):
        mix_files([corpus], tmp_path / "no", short)
    assert not (tmp_path / "no").exists()
    fill = MixOptions(**{**vars(short), "fill": True})
    mix_files([corpus], tmp_path / "filled", fill)
    assert units(rows_of(tmp_path / "filled" / "kept.jsonl.zst"), "domain") == {"web": 1200, "books": 800}


def test_languages_have_their_shares_beside_the_domains(corpus: Path, tmp_path: Path) -> None:
    options = MixOptions(weights={"web": 0.8, "books": 0.2}, languages={"zh": 0.75, "en": 0.25}, total=1000)
    mix_files([corpus], tmp_path / "out", options)
    kept = rows_of(tmp_path / "out" / "kept.jsonl.zst")
    assert units(kept, "lang") == {"zh": 750, "en": 250}
    assert units(kept, "domain") == {"web": 800, "books": 200}


def test_the_same_rows_are_chosen_whatever_the_order_of_the_input(corpus: Path, tmp_path: Path) -> None:
    options = MixOptions(weights={"web": 0.5, "books": 0.5})
    mix_files([corpus], tmp_path / "one", options)
    lines = corpus.read_text("utf-8").splitlines()
    (tmp_path / "reversed.jsonl").write_text("\n".join(reversed(lines)), "utf-8")
    mix_files([tmp_path / "reversed.jsonl"], tmp_path / "two", options)
    one, two = (rows_of(tmp_path / name / "kept.jsonl.zst") for name in ("one", "two"))
    assert one == two[::-1]


def test_the_verb_says_its_plan_first(corpus: Path, tmp_path: Path, run_cli: RunCli) -> None:
    said = run_cli("curate", "mix", corpus, "--weights", "web=0.75,books=0.25", "--plan")
    assert "books/en: 12.5%, 200 units, 1.00 passes" in said.stderr
    assert "1 rows could not be used\n" in said.stdout, "and names no file that was not written"
    assert not (tmp_path / "mixed").exists()
    result = run_cli("curate", "mix", corpus, "--out", "out", "--weights", "web=0.75,books=0.25", "--json").json
    assert result["taken"] == 1600
    failed = run_cli("curate", "mix", corpus, "--out", "x", "--weights", "web=0.75,papers=1", "--json", code=2).json
    assert "no domain 'papers'" in failed["error"]["what"]


def test_a_weight_that_is_no_number_is_the_users_mistake() -> None:
    from headwater.cli.curate_collect import _shares

    with pytest.raises(UserError, match="'web' is no NAME=NUMBER"):
        _shares("web", "--weights")
    for endless in ("web=nan", "web=inf"):
        with pytest.raises(UserError, match=f"'{endless}' is no NAME=NUMBER"):
            _shares(f"books=1,{endless}", "--weights")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": {"web": math.nan, "books": 1.0}}, "weights of web is nan"),
        ({"weights": {"web": math.inf}}, "weights of web is inf"),
        ({"weights": {"web": -1.0, "books": 2.0}}, "weights of web is -1"),
        ({"weights": {"web": 0.0}}, "weights are all 0"),
        ({"max_repeats": {"": -1.0}}, "max_repeats is -1"),
        ({"max_repeats": {"books": 0.0}}, "max_repeats of books is 0"),
        ({"max_repeats": {"": math.inf}}, "max_repeats is inf"),
        ({"languages": {"zh": -0.5, "en": 1.0}}, "languages of zh is -0.5"),
        ({"languages": {"zh": 0.0}}, "languages are all 0"),
        ({"languages": {"zh": 1.0}, "language_temperature": 2.0}, "languages and language_temperature are given"),
        ({"language_temperature": 0.0}, "language_temperature is 0"),
        ({"language_temperature": math.nan}, "language_temperature is nan"),
        ({"priority": ("web",)}, "priority says who fills a shortfall"),
        ({"total": -1}, "total is -1"),
    ],
    ids=lambda value: None if isinstance(value, dict) else value,
)
def test_wishes_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        MixOptions(**options)


@pytest.fixture
def apart(tmp_path: Path) -> Path:
    """100 units of web in Chinese, 100 of books in English."""
    rows = [{"id": f"w{number}", "domain": "web", "lang": "zh", "text": "水" * 10} for number in range(10)]
    rows += [{"id": f"b{number}", "domain": "books", "lang": "en", "text": "water " * 10} for number in range(10)]
    path = tmp_path / "apart.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_languages_alone_decide_where_no_domain_is_asked_for(apart: Path, tmp_path: Path) -> None:
    report = mix_files([apart], tmp_path / "out", MixOptions(languages={"zh": 0.8, "en": 0.2}))
    assert {cell["lang"]: cell["taken"] for cell in report["cells"]} == {"zh": 100, "en": 20}
    report = mix_files([apart], tmp_path / "zh", MixOptions(languages={"zh": 1.0}))
    assert {cell["lang"]: cell["taken"] for cell in report["cells"]} == {"zh": 100, "en": 0}


def test_shares_of_domains_and_languages_that_exclude_each_other_are_refused(apart: Path, tmp_path: Path) -> None:
    both = {"weights": {"web": 0.5, "books": 0.5}, "languages": {"zh": 0.8, "en": 0.2}}
    with pytest.raises(RecipeError, match=r"zh would have 50\.0% of the 80\.0% wanted; en"):
        mix_files([apart], tmp_path / "out", MixOptions(**both))
    lost = {"weights": {"web": 0.5, "books": 0.5}, "languages": {"zh": 1.0}}
    with pytest.raises(RecipeError, match=r"books would have 0\.0% of the 50\.0% wanted"):
        mix_files([apart], tmp_path / "out", MixOptions(**lost))
    with pytest.raises(RecipeError, match="cannot give these shares"):
        mix_files([apart], tmp_path / "out", MixOptions(weights={"books": 1.0}, languages={"zh": 1.0}, fill=True))
    assert not (tmp_path / "out").exists()
    report = mix_files([apart], tmp_path / "out", MixOptions(**both, fill=True))
    assert report["taken"] == 200


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--weights", "web=0.5,web=0.5"], "web is given twice"),
        (["--weights", "=0.5"], "'=0.5' is no NAME=NUMBER"),
        (["--max-repeats", "inf"], "'inf' is no number"),
        (["--max-repeats", "-1"], "max_repeats is -1"),
        (["--max-repeats", "many"], "'many' is no number"),
        (["--max-repeats", "books=4,books=2"], "books is given twice"),
        (["--languages", "fr=1"], "no text in language 'fr'"),
        (["--weights", "papers=1"], "no domain 'papers'"),
        (["--languages", "=1"], "'=1' is no NAME=NUMBER"),
        (["--weights", "web=1", "--total", "5e3"], "would give 2,500 units"),
        (["--total", "2.5"], "'2.5' is no whole number"),
        (["--total", "-1"], "total is -1"),
    ],
    ids=" ".join,
)
def test_the_verb_says_which_wish_it_cannot_meet(
    corpus: Path, tmp_path: Path, options: list[str], message: str
) -> None:
    error = CliRunner().invoke(app, ["mix", str(corpus), "--out", str(tmp_path / "out"), *options]).exception
    assert isinstance(error, UserError)
    assert message in error.what
    assert "train" not in f"{error.where} {error.mend}", "the advice is for this verb"
    assert not (tmp_path / "out").exists()


def test_domains_with_a_slash_are_not_mixed_up_with_a_language_of_another(tmp_path: Path) -> None:
    rows = [{"id": f"{number}", "domain": "web", "lang": "en", "text": "water " * 10} for number in range(10)]
    rows += [{"id": f"s{number}", "domain": "web/en", "text": "stone " * 10} for number in range(5)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = mix_files([tmp_path / "in.jsonl"], tmp_path / "out", MixOptions(weights={"web": 0.5, "web/en": 0.5}))
    assert {(cell["domain"], cell["taken"]) for cell in report["cells"]} == {("web", 50), ("web/en", 50)}


def test_the_same_mixture_again_changes_nothing_and_another_is_not_overwritten(corpus: Path, tmp_path: Path) -> None:
    first = mix_files([corpus], tmp_path / "out", MixOptions())
    before = (tmp_path / "out" / "kept.jsonl.zst").stat().st_mtime_ns
    assert mix_files([corpus], tmp_path / "out", MixOptions()) == first
    assert (tmp_path / "out" / "kept.jsonl.zst").stat().st_mtime_ns == before
    with pytest.raises(UserError, match="another result"):
        mix_files([corpus], tmp_path / "out", MixOptions(seed=1))
    corpus.write_text("\n".join(corpus.read_text("utf-8").splitlines()[:-1]), "utf-8")
    mix_files([corpus], tmp_path / "out", MixOptions(seed=1), overwrite=True)
    assert not (tmp_path / "out" / "quarantine.jsonl").exists(), "of the rows before"


@pytest.fixture
def curated(tmp_path: Path) -> Callable[[], Path]:
    def make() -> Path:
        for split in ("train", "validation"):
            (tmp_path / "corpus" / split).mkdir(parents=True)
            with DocumentWriter(tmp_path / "corpus" / split / "web-00000.parquet") as writer:
                for number in range(5):
                    identity = document_id("web", split, number)
                    writer.add(Document(identity, f"第{number}篇", "web", "zh", "web", meta={"n": number}))
        return tmp_path / "corpus"

    return make


def test_a_corpus_goes_out_as_json_lines_and_parquet(curated: Callable[[], Path], tmp_path: Path) -> None:
    folder = curated()
    report = export_corpus(folder, tmp_path / "jsonl", "jsonl")
    assert report["documents"] == 10
    rows = rows_of(tmp_path / "jsonl" / "train" / "web-00000.jsonl.zst")
    assert [(row["text"], row["meta"]) for row in rows] == [(f"第{n}篇", {"n": n}) for n in range(5)]
    export_corpus(folder, tmp_path / "parquet", "parquet", splits=["train"], domains=["web"])
    table = pq.read_table(tmp_path / "parquet" / "train" / "web-00000.parquet")
    assert table.column("text").to_pylist() == [row["text"] for row in rows]
    assert not (tmp_path / "parquet" / "validation").exists()
    with pytest.raises(InputError, match="not empty"):
        export_corpus(folder, tmp_path / "jsonl", "jsonl")
    with pytest.raises(InputError, match="no test split"):
        export_corpus(folder, tmp_path / "x", "jsonl", splits=["test"])


def test_rows_that_name_no_language_are_not_guessed_and_said(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "今天天气很好，我们去公园散步。", "domain": "web"}\n', "utf-8")
    with pytest.raises(RecipeError, match="no text in language 'zh'") as refused:
        mix_files([tmp_path / "in.jsonl"], tmp_path / "out", MixOptions(languages={"zh": 1.0}))
    assert "each row names its own in `lang`; the languages are (none)" in str(refused.value.mend)
