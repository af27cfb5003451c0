"""arXiv sources: macros in place, comments and bibliography gone, equations as they were written."""

from __future__ import annotations

import gzip
import io
import random
import tarfile
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.curate.config import SourceConfig
from headwater.curate.readers import read_file
from headwater.curate.readers.latex import latex_to_text
from headwater.curate.records import Bad, Item, Record, Skipped
from headwater.curate.sources import source_files

MAIN = r"""\documentclass{article} % a comment
\newcommand{\R}{\mathbb{R}}
\newcommand{\norm}[2][2]{\left\|#2\right\|_{#1}}
\def\eps{\varepsilon}
\DeclareMathOperator{\argmax}{arg\,max}
\newcommand{\method}{\textsc{Flow}}
\title{A \emph{Great} Paper\thanks{money}}
\begin{document}
\maketitle
\begin{abstract}We show 50\% more~things.\end{abstract}
\section{Introduction}\label{sec:i}
Let $x \in \R^n$, $\norm{x} < \eps$ \cite{a,b}. \method{} is na\"ive, Erd\H{o}s. It costs \$5 --- ``yes''.
\iffalse hidden \fi
\begin{equation}\label{eq:1}
 \argmax_x \norm[1]{x}
\end{equation}
\begin{figure}\includegraphics{x.png}\caption{No}\end{figure}
\begin{itemize}
\item One \textbf{bold \emph{it}}
\item Two\footnote{a note}
\end{itemize}
\input{more}
\bibliography{refs}
\begin{thebibliography}{9}\bibitem{a} Gone \end{thebibliography}
\end{document} after the end"""
MORE = "\\subsection{更多}\n中文内容，公式 \\[ a=b \\] 结束。"
TEXT = r"""# A Great Paper

## Abstract

We show 50% more things.

## Introduction

Let $x \in \mathbb{R}^n$, $\left\|x\right\|_{2} < \varepsilon$. Flow is naïve, Erdős. It costs $5 — “yes”.

\begin{equation}
 \operatorname{arg\,max}_x \left\|x\right\|_{1}
\end{equation}

- One bold it
- Two

### 更多

中文内容，公式 \[ a=b \] 结束。"""


def archive(files: dict[str, bytes]) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return data.getvalue()


def read(path: Path, **settings: object) -> list[Item]:
    source = SourceConfig(name="papers", kind="arxiv", paths=(path.name,), **settings)  # type: ignore[arg-type]
    return [item for file in source_files(source, path.parent) for item in read_file(file, source)]


def squeezed(text: str) -> str:
    return "\n".join(line.strip() for line in text.split("\n") if line.strip())


def test_a_paper_reads_as_its_author_meant() -> None:
    found = latex_to_text({"main.tex": MAIN, "more.tex": MORE})
    assert found.title == "A Great Paper"
    assert squeezed(found.text) == squeezed(TEXT)


def test_single_files_archives_and_bulk_tars_give_the_same_paper(tmp_path: Path) -> None:
    files = {"main.tex": MAIN.encode(), "more.tex": MORE.encode(), "fig/x.png": b"\x89PNG"}
    (tmp_path / "2101.00001v2.tar.gz").write_bytes(gzip.compress(archive(files)))
    (record,) = read(tmp_path / "2101.00001v2.tar.gz", license="CC-BY-4.0")
    assert isinstance(record, Record)
    assert squeezed(record.text) == squeezed(TEXT)
    assert (record.url, record.domain, record.license) == ("https://arxiv.org/abs/2101.00001v2", "papers", "CC-BY-4.0")

    alone = MAIN.replace("\\input{more}", MORE).encode()
    bulk = {
        "0101/hep-th0101001.gz": gzip.compress(alone),
        "0101/2101.00001.gz": gzip.compress(archive(files)),
        "0101/2101.00002.pdf": b"%PDF-1.4",
        "0101/2101.00003.gz": gzip.compress(b"%auto-ignore\nThis paper has been withdrawn"),
        "0101/2101.00004.gz": gzip.compress(alone)[:-20],
    }
    (tmp_path / "bulk.tar").write_bytes(archive(bulk))
    items = read(tmp_path / "bulk.tar")
    records = [item for item in items if isinstance(item, Record)]
    assert [squeezed(item.text) for item in records] == [squeezed(TEXT)] * 2
    assert [item.url for item in records] == [
        "https://arxiv.org/abs/hep-th/0101001",
        "https://arxiv.org/abs/2101.00001",
    ]
    assert [item.reason for item in items if isinstance(item, Skipped)] == ["no-paper", "no-paper"]
    assert [item.reason for item in items if isinstance(item, Bad)] == ["corrupt"]


def test_a_cut_bulk_tar_keeps_its_whole_papers(tmp_path: Path) -> None:
    secrets = [f"% {random.Random(n).randbytes(3000).hex()}\n".encode() for n in range(4)]
    bulk = archive({f"2101.0000{n}.gz": gzip.compress(secrets[n] + MAIN.encode()) for n in range(4)})
    (tmp_path / "cut.tar.gz").write_bytes(gzip.compress(bulk)[:-200])
    items = read(tmp_path / "cut.tar.gz")
    assert sum(isinstance(item, Record) for item in items) >= 2
    assert [item.reason for item in items if isinstance(item, Bad)] == ["truncated"]


def test_an_archive_that_expands_a_thousandfold_ends_at_the_cap(tmp_path: Path) -> None:
    bomb = gzip.compress(b"\\documentclass{a}" + b" " * 30_000_000)
    (tmp_path / "bulk.tar").write_bytes(archive({"a.gz": bomb, "b.gz": gzip.compress(MAIN.encode())}))
    items = read(tmp_path / "bulk.tar", max_document_bytes=1_000_000)
    assert [type(item).__name__ for item in items] == ["Bad", "Record"]


def test_macros_that_call_themselves_and_files_that_include_themselves_end() -> None:
    loop = r"\documentclass{a}\newcommand{\a}{x\a\a}\begin{document}\section{T} \a \input{main} end\end{document}"
    assert latex_to_text({"main.tex": loop}).text.endswith("end")


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (r"One \hskip 10pt plus 1fil two.", "One two."),
        (r"\hoffset=-6.5cm\looseness = -3 \unitlength=.5\textwidth The text.", "The text."),
        (r"A\kern-.5em B \raise 2pt\hbox{C} 10pt.", "AB C 10pt."),
        (r"\put(95,0){seen} \line(1,0){20}\linethickness{0.4mm} here", "seen here"),
        (r"\textit{x} = 3 and \textbf{10 cm} of 3pt", "x = 3 and 10 cm of 3pt"),
        (r"\item 10 cm \LaTeX 10pt \ldots 3 mm", "- 10 cm LaTeX10pt …3 mm"),
    ],
)
def test_lengths_that_are_layout_go_and_others_stay(source: str, text: str) -> None:
    assert latex_to_text({"a.tex": f"\\documentclass{{x}}\\begin{{document}}{source}\\end{{document}}"}).text == text


@given(st.text(st.sampled_from("\\{}[]$%&~ab \n'\"#1()"), max_size=60))
def test_no_latex_is_too_broken_to_read(body: str) -> None:
    text = latex_to_text({"m.tex": f"\\documentclass{{a}}\n\\begin{{document}}{body}\\end{{document}}"}).text
    assert "\ue000" not in text


@pytest.mark.parametrize(
    "mark", ["{", "\\[", "$", "\\begin{figure}", "\\emph{", "\\cite[", "\\'", " ", "\\begin{align}"]
)
def test_marks_repeated_without_end_take_linear_time(mark: str) -> None:
    started = time.process_time()
    latex_to_text({"m.tex": "\\documentclass{a}\\begin{document}\\section{x}" + mark * 20_000})
    assert time.process_time() - started < 5
