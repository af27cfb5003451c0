"""Does `headwater eval` find what lm-evaluation-harness finds, item by item? A table of both on one model and files.

    python benchmarks/eval_parity.py MODEL DATA --peer /path/to/lm-eval/bin/python --limit 200

MODEL is a Hugging Face folder both can load, DATA a folder of benchmark files, --peer the Python of an environment with
`lm-eval` (0.4.9 or later). Likelihoods must be within 1e-4 nats, picks and greedy texts the same; every difference is
printed. Both sides use one thread and float32. CPU seconds are given too, since a machine that others use has no fair
wall clock. Exit code 1 if a difference is found.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TOLERANCE = 1e-4
LIKELIHOOD = ("piqa", "arc_challenge", "hellaswag", "lambada", "wikitext")
WRITTEN = ("gsm8k", "humaneval", "nq_open")
WINDOW = 96
"""Tokens of a window of the perplexity task: short, so that texts are cut into several."""
SHORT = {"gsm8k": 128, "humaneval": 96, "nq_open": 24}
"""Tokens of generated answers: what a small machine can write."""


def our_task(name: str) -> Any:
    from headwater.evaluate.tasks import find_tasks

    spec = find_tasks(names=[name])[0]
    if name != "wikitext":
        spec = spec.model_copy(update={"files": (f"{name}.jsonl",)})
    if name == "wikitext":
        return spec.model_copy(update={"window": WINDOW, "files": ("paragraphs.jsonl",)})
    if name in SHORT:
        return spec.model_copy(update={"max_tokens": SHORT[name]})
    return spec


def peer_rows(name: str, rows: list[Any]) -> list[Any]:
    """The same rows in the schema the harness reads from the hub."""
    if name == "arc_challenge":
        return [
            {
                "id": row["id"],
                "question": row["question"]["stem"],
                "choices": {key: [c[key] for c in row["question"]["choices"]] for key in ("text", "label")},
                "answerKey": row["answerKey"],
            }
            for row in rows
        ]
    if name == "hellaswag" and "ctx_a" not in rows[0]:
        made = []
        for row in rows:
            activity, _, context = row["ctx"].partition(": ")
            made.append({"activity_label": activity, "ctx_a": context, "ctx_b": "", "label": str(row["label"])})
            made[-1]["endings"] = row["endings"]
        return made
    return rows


def write_rows(path: Path, rows: list[Any]) -> str:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def paragraphs(data: Path) -> list[dict[str, str]]:
    """The longest form of WikiText both read alike: paragraphs of the raw file, as pages."""
    from headwater.evaluate.tasks.data import read_file

    file = next(path for folder in (data, data.parent) for path in sorted(folder.rglob("wikitext2_valid.txt*")))
    lines = read_file(file)[0]["text"].split("\n")
    return [{"page": line + "\n"} for line in lines if len(line) > 200]


def _taken(rows: list[Any], count: int, shortest: bool) -> list[Any]:
    """The first rows, or the shortest ones, in file order."""
    if not shortest:
        return rows[:count]
    order = sorted(range(len(rows)), key=lambda place: len(json.dumps(rows[place], ensure_ascii=False)))
    return [rows[place] for place in sorted(order[:count])]


def prepare(
    names: list[str], data: Path, limit: int, written: int, folder: Path, *, shortest: bool = False
) -> list[dict[str, Any]]:
    """Files for both sides, and the peer's jobs."""
    from headwater.evaluate.tasks import find_tasks
    from headwater.evaluate.tasks.data import load_rows

    jobs = []
    for name in names:
        count = written if name in WRITTEN else limit
        job: dict[str, Any] = {"name": name}
        if name == "wikitext":
            rows = _taken(paragraphs(data), count, shortest)
            write_rows(folder / "paragraphs.jsonl", rows)
            job["window"] = WINDOW
        else:
            spec = find_tasks(names=[name])[0]
            rows = _taken(load_rows(spec.files, folder=data, hub=None, task=name).rows, count, shortest)
            write_rows(folder / f"{name}.jsonl", rows)
            if spec.fewshot.count:
                shots = load_rows(spec.fewshot.files, folder=data, hub=None, task=name).rows[: spec.fewshot.count]
                write_rows(folder / spec.fewshot.files[-1], shots)
                job["examples"] = write_rows(folder / f"peer-{name}-examples.jsonl", shots)
        if name in SHORT:
            job["max_tokens"] = SHORT[name]
        job["file"] = write_rows(folder / f"peer-{name}.jsonl", peer_rows(name, rows))
        job["rows"] = len(rows)
        jobs.append(job)
    return jobs


def ask_peer(python: str, model: Path, jobs: list[dict[str, Any]], batch: int) -> Iterator[dict[str, Any]]:
    """The harness's findings, a task at a time."""
    script = Path(__file__).with_name("eval_peer.py")
    process = subprocess.Popen([python, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    json.dump({"model": str(model), "batch": batch, "tasks": jobs}, process.stdin)
    process.stdin.close()
    for line in process.stdout:
        yield json.loads(line)
    if process.wait():
        raise SystemExit(f"the peer ended with {process.returncode}")


def compare(name: str, records: list[dict[str, Any]], items: list[dict[str, Any]]) -> dict[str, Any]:
    """Largest difference in nats, items whose picks, greediness or texts differ, and those items."""
    largest, different = 0.0, []
    if len(records) != len(items):
        different.append(f"{len(records)} items here, {len(items)} there")
    for record, item in zip(records, items, strict=False):
        answers = item["answers"]
        if name in WRITTEN:
            same = _same_text(name, record["texts"][0], answers[0]) and _same_verdict(name, record, item)
        elif name == "wikitext":
            gap = abs(-record["sums"]["nats"] - float(answers[0])) / max(1, record["sums"]["tokens"])
            largest, same = max(largest, gap), gap <= TOLERANCE
        else:
            pairs = [(float(nats), greedy in (True, "True")) for nats, greedy in answers]
            gap = max(abs(ours - theirs) for ours, (theirs, _) in zip(record["nats"], pairs, strict=True))
            largest = max(largest, gap)
            theirs = next(iter(item["by_filter"].values()))
            metrics = [key for key in ("acc", "acc_norm") if key in theirs]
            same = gap <= TOLERANCE and all(record["metrics"][key] == float(theirs[key]) for key in metrics)
            same = same and record["greedy"] == [greedy for _, greedy in pairs]
        if not same:
            different.append(f"item {record['id']}")
    return {"largest": largest, "different": different}


def _same_text(name: str, ours: str, theirs: str) -> bool:
    if name == "nq_open":  # the harness stops at . and , and we read one line to its end
        return ours.startswith(theirs) and (len(ours) == len(theirs) or ours[len(theirs)] in ".,")
    return ours == theirs


def _same_verdict(name: str, record: dict[str, Any], item: dict[str, Any]) -> bool:
    found = item["by_filter"]
    if name == "gsm8k":
        pairs = (("strict", "strict-match"), ("flexible", "flexible-extract"))
        return all(record["metrics"][ours] == float(found[theirs]["exact_match"]) for ours, theirs in pairs)
    if name == "nq_open":
        return record["metrics"]["exact_match"] == float(next(iter(found.values()))["exact_match"])
    return True  # both texts meet the same sandbox


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--peer", default=sys.executable, help="Python with lm-eval")
    parser.add_argument("--limit", type=int, default=200, help="items of each likelihood task")
    parser.add_argument("--written", type=int, default=12, help="items of each generation task")
    parser.add_argument("--shortest", action="store_true", help="the shortest items instead of the first")
    parser.add_argument("--tasks", default=",".join((*LIKELIHOOD, *WRITTEN)))
    parser.add_argument("--batch", type=int, default=16, help="rows of the peer's batches")
    parser.add_argument("--json", type=Path, help="also write the table here")
    asked = parser.parse_args()
    import torch

    from headwater.evaluate.backends import LocalBackend
    from headwater.evaluate.tasks import run_task

    torch.set_num_threads(1)
    backend = LocalBackend.open(asked.model, device="cpu", dtype="float32")
    names = asked.tasks.split(",")
    rows = []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        jobs = prepare(names, asked.data, asked.limit, asked.written, folder, shortest=asked.shortest)
        theirs = ask_peer(asked.peer, asked.model, jobs, asked.batch)
        print("| task | items | largest gap (nats) | items that differ | here | there | CPU s here | there | ratio |")
        print("|---|---:|---:|---:|---:|---:|---:|---:|---:|", flush=True)
        for job in jobs:
            peer = next(theirs)  # the peer works ahead of us by no more than the pipe holds: one task beside one
            name = job["name"]
            started = time.process_time()
            found = run_task(our_task(name), backend, folder=folder, limit=job["rows"])
            cpu = time.process_time() - started
            outcome = compare(name, found.records, peer["items"])
            headline = found.metrics[found.headline].value
            theirs_figure = _figure(name, found.headline, peer["figures"])
            rows.append({"task": name, "items": job["rows"], **outcome, "cpu": cpu, "peer_cpu": peer["cpu_seconds"]})
            print(
                f"| {name} | {job['rows']} | {outcome['largest']:.1e} | {len(outcome['different'])} | "
                f"{found.headline} {headline:.4f} | {theirs_figure} | {cpu:.1f} | {peer['cpu_seconds']:.1f} | "
                f"{peer['cpu_seconds'] / cpu:.2f} |",
                flush=True,
            )
            for line in outcome["different"][:10]:
                print(f"  {name}: {line}", file=sys.stderr)
    if asked.json is not None:
        asked.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return int(any(row["different"] for row in rows))


def _figure(name: str, headline: str, figures: dict[str, float]) -> str:
    wanted = {"strict": "exact_match,strict-match"}.get(headline, headline)
    value = next((value for key, value in figures.items() if key == wanted or key.split(",")[0] == wanted), None)
    return "" if value is None else f"{value:.4f}"


if __name__ == "__main__":
    sys.exit(main())
