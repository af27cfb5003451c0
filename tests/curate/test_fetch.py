"""Fetching from a real server and real file systems: nothing twice, nothing half, everything that failed counted."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.core.documents import read_documents
from headwater.core.errors import InputError
from headwater.core.executor import InlineExecutor
from headwater.core.progress import SILENT
from headwater.core.shards import ShardFolder
from headwater.core.stage import StageContext
from headwater.curate.config import CollectConfig, SourceConfig
from headwater.curate.fetch.addresses import local_name, wanted
from headwater.curate.fetch.config import FetchConfig
from headwater.curate.fetch.fetch import fetch_missing, fetch_source, read_receipt, unfetched
from headwater.curate.fetch.transfer import Pace, TransferError, transfer
from headwater.curate.identity import raw_inputs
from headwater.curate.stage import collect_into
from tests.conftest import RunCli, clean_environment
from tests.curate.web import Web, serve

FAST = Pace(10_000.0)


@pytest.fixture
def web() -> Iterator[Web]:
    with serve() as made:
        yield made


def source(kind: str = "auto", **fetch: Any) -> SourceConfig:
    defaults = {"requests_per_second": 1000.0, "retry_seconds": 0.01}
    return SourceConfig(name="far", kind=kind, license="CC0-1.0", fetch=FetchConfig(**{**defaults, **fetch}))  # type: ignore[arg-type]


def collected(config: CollectConfig, out: Path) -> tuple[dict[str, Any], list[Any]]:
    out.mkdir()
    counts = collect_into(ShardFolder(out), config, StageContext(out, InlineExecutor(), SILENT))
    return counts, [d for path in sorted(out.glob("documents/*.parquet")) for d in read_documents(path)]


def test_a_broken_transfer_goes_on_in_the_middle(web: Web, tmp_path: Path) -> None:
    content = random.Random(0).randbytes(3_000_000)
    web.pages["/a.bin"] = content
    web.cut["/a.bin"] = [1_000_000, 500_000]
    came = transfer(f"{web.url}/a.bin", tmp_path / "a.bin", pace=FAST, retry_seconds=0.01)
    assert (tmp_path / "a.bin").read_bytes() == content
    assert came.sha256 == hashlib.sha256(content).hexdigest()
    assert came.tries == 3
    assert [asked for _, _, asked in web.requests] == ["", "bytes=1000000-", "bytes=1500000-"]
    assert web.served == len(content), "no byte came twice"
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]


def test_content_that_changed_meanwhile_is_fetched_anew(web: Web, tmp_path: Path) -> None:
    web.pages["/a"], web.cut["/a"] = b"old" * 1000, [500]
    with pytest.raises(TransferError, match="byte 500 of 3,000"):
        transfer(f"{web.url}/a", tmp_path / "a", pace=FAST, retries=0)
    web.pages["/a"] = b"new" * 1000
    transfer(f"{web.url}/a", tmp_path / "a", pace=FAST, retries=0)
    assert (tmp_path / "a").read_bytes() == b"new" * 1000


def test_a_server_without_ranges_gives_the_whole_again(web: Web, tmp_path: Path) -> None:
    web.pages["/a"], web.cut["/a"], web.ranges = b"x" * 9999, [5000], False
    transfer(f"{web.url}/a", tmp_path / "a", pace=FAST, retry_seconds=0.01)
    assert (tmp_path / "a").read_bytes() == b"x" * 9999


def test_a_part_that_was_whole_already_is_taken(web: Web, tmp_path: Path) -> None:
    web.pages["/a"], web.cut["/a"] = b"y" * 100, [60]
    with pytest.raises(TransferError):
        transfer(f"{web.url}/a", tmp_path / "a", pace=FAST, retries=0)
    with open(tmp_path / "a.part", "ab") as part:
        part.write(b"y" * 40)  # killed after the last byte, before the rename
    transfer(f"{web.url}/a", tmp_path / "a", pace=FAST, retries=0)
    assert (tmp_path / "a").read_bytes() == b"y" * 100


def test_faults_of_the_server_are_waited_for_and_missing_pages_are_not(web: Web, tmp_path: Path) -> None:
    web.pages["/a"], web.faults["/a"], web.retry_after = b"here", [503, 429], "1"
    started = time.monotonic()
    assert transfer(f"{web.url}/a", tmp_path / "a", pace=FAST, retry_seconds=0.0).tries == 3
    assert time.monotonic() - started >= 2.0, "Retry-After was kept to"
    with pytest.raises(TransferError, match="HTTP 404") as caught:
        transfer(f"{web.url}/none", tmp_path / "none", pace=FAST)
    assert "tries" not in caught.value.what
    assert not list(tmp_path.glob("none*"))


def test_a_wrong_checksum_is_refused_and_a_right_one_accepted(web: Web, tmp_path: Path) -> None:
    web.pages["/a"] = b"content"
    for kind in ("md5", "sha1", "sha256"):
        digest = hashlib.new(kind, b"content").hexdigest()
        transfer(f"{web.url}/a", tmp_path / kind, pace=FAST, checksum=f"{kind}:{digest}")
    with pytest.raises(TransferError, match="its checksum is md5:9a0364"):
        transfer(f"{web.url}/a", tmp_path / "bad", pace=FAST, checksum="md5:" + "0" * 32, retries=1, retry_seconds=0)
    assert not list(tmp_path.glob("bad*"))


def test_requests_to_a_host_keep_their_distance(web: Web, tmp_path: Path) -> None:
    web.pages = {f"/{number}": b"%d" % number for number in range(6)}
    addresses = tuple(f"{web.url}/{number}" for number in range(6))
    started = time.monotonic()
    fetch_source(source(addresses=addresses, requests_per_second=20.0), tmp_path)
    times = sorted(when - started for when, _, _ in web.requests)
    assert all(when >= number / 20.0 for number, when in enumerate(times)), times


def test_a_list_is_fetched_once_and_what_failed_is_counted(web: Web, tmp_path: Path) -> None:
    web.pages = {f"/{n}.jsonl": json.dumps({"text": f"第{n}页 page"}).encode() for n in range(5)}
    digest = hashlib.sha256(web.pages["/0.jsonl"]).hexdigest()
    lines = [f"{web.url}/{n}.jsonl" for n in range(5)]
    text = "\n".join([f"{lines[0]} sha256:{digest}", "", "# more", *lines[1:], f"{web.url}/gone"])
    (tmp_path / "urls.txt").write_text(text)
    config = CollectConfig(root=str(tmp_path), sources=(source(lists="urls.txt"),))
    assert [one.name for one in unfetched(config)] == ["far"]
    with pytest.raises(InputError, match="not fetched yet"):
        raw_inputs(config)
    (receipt,) = fetch_missing(config)
    assert len(receipt.files) == 5
    assert [failure.reason for failure in receipt.failed] == ["HTTP 404 Not Found"]
    assert receipt.license == "CC0-1.0"
    assert all(len(file.retrieved) == 20 and file.retrieved.endswith("Z") for file in receipt.files)
    requests = len(web.requests)
    assert fetch_missing(config) == [receipt]
    assert len(web.requests) == requests, "what is here is not asked for again"

    counts, documents = collected(config, tmp_path / "out")
    assert counts["sources"]["far"]["quarantined"] == {"not-fetched": {"records": 1, "raw_bytes": 0}}
    assert {document.url for document in documents} == set(lines)
    assert {document.license for document in documents} == {"CC0-1.0"}
    row = json.loads((tmp_path / "out" / "quarantine.jsonl").read_text())
    assert row["detail"] == f"{web.url}/gone: HTTP 404 Not Found"

    web.pages["/gone"] = b'{"text": "back"}'
    before = raw_inputs(config)
    (receipt,) = fetch_missing(config, again=True)
    assert not receipt.failed
    assert len(web.requests) == requests + 1
    assert raw_inputs(config) != before


def test_too_many_failures_stop_the_source(web: Web, tmp_path: Path) -> None:
    web.pages["/a"] = b"a"
    with pytest.raises(InputError, match="1 of 2 files of source 'far' could not be fetched"):
        fetch_source(source(addresses=(f"{web.url}/a", f"{web.url}/b"), max_failed_ratio=0.1), tmp_path)


def test_a_list_with_a_line_that_is_no_address_is_refused(tmp_path: Path) -> None:
    (tmp_path / "list").write_text("https://x.example/a\ncrawl-data/a.warc.gz\n")
    with pytest.raises(InputError, match=r"no whole address") as caught:
        fetch_source(source(lists="list"), tmp_path)
    assert caught.value.where == "list:2"
    (tmp_path / "list").write_text("https://x.example/a md5:12\n")
    with pytest.raises(InputError, match="no checksum"):
        fetch_source(source(lists="list"), tmp_path)


def test_common_crawl_paths_become_documents(web: Web, shared_data: Path, tmp_path: Path) -> None:
    names = ["sample-0000.warc.gz", "warcfile.warc.gz", "example-bad.warc.gz.bad"]
    paths = [f"crawl-data/CC-MAIN-2026-01/segments/1/warc/{name}" for name in names]
    for name, path in zip(names, paths, strict=True):
        web.pages[f"/{path}"] = (shared_data / "warc" / name).read_bytes()
    web.pages["/crawl-data/CC-MAIN-2026-01/warc.paths.gz"] = gzip.compress("\n".join(paths).encode())
    fetch = {"lists": f"{web.url}/crawl-data/CC-MAIN-2026-01/warc.paths.gz", "base_url": f"{web.url}/"}
    config = CollectConfig(root=str(tmp_path), sources=(source("warc", first=2, **fetch),))
    (receipt,) = fetch_missing(config)
    assert [file.address for file in receipt.files] == [f"{web.url}/{path}" for path in paths[:2]]
    counts, documents = collected(config, tmp_path / "out")
    local = CollectConfig(
        root=str(shared_data / "warc"), sources=({"name": "far", "kind": "warc", "paths": names[:2]},)
    )
    here, same = collected(local, tmp_path / "here")
    assert counts["documents"] == here["documents"] > 0
    assert sorted(d.text for d in documents) == sorted(d.text for d in same)


def test_file_systems_of_fsspec_give_files_by_patterns(tmp_path: Path) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe({f"/bucket/books/{n}.txt": f"Book {n}. 书".encode() for n in range(3)})
    memory.pipe("/bucket/books/notes.md", b"# no")
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "a.txt").write_text("on disk")
    addresses = ("memory://bucket/books/*.txt", f"file://{tmp_path}/disk/a.txt", "memory://bucket/none.txt")
    config = CollectConfig(root=str(tmp_path), sources=(source("text", addresses=addresses, retries=1),))
    (receipt,) = fetch_missing(config)
    assert [file.size for file in receipt.files] == [11, 11, 11, 7]
    assert [failure.reason for failure in receipt.failed] == ["there is no such file"]
    _, documents = collected(config, tmp_path / "out")
    assert sorted(document.text for document in documents) == ["Book 0. 书", "Book 1. 书", "Book 2. 书", "on disk"]
    with pytest.raises(InputError, match="nothing there"):
        fetch_source(source(addresses="memory://bucket/*.parquet"), tmp_path)


def test_a_protocol_without_its_package_says_what_to_install(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    try:
        import s3fs  # noqa: F401
    except ImportError:
        with pytest.raises(InputError, match="s3://") as caught:
            fetch_source(source(addresses="s3://bucket/*.parquet"), tmp_path)
        assert "headwater[s3]" in caught.value.mend
    with pytest.raises(InputError, match="nosuch://"):
        fetch_source(source(addresses="nosuch://bucket/*.parquet"), tmp_path)


def test_a_fetch_killed_at_any_moment_goes_on(web: Web, tmp_path: Path) -> None:
    web.pages = {f"/{n}.txt": os.urandom(200_000) for n in range(30)}
    (tmp_path / "list").write_text("\n".join(f"{web.url}/{n}.txt" for n in range(30)))
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "schema: 1\nname: far\ncollect:\n  sources:\n"
        "    - {name: far, fetch: {lists: [list], requests_per_second: 50, connections: 2}}\n"
        "train: {steps: 1}\n"
    )
    command = [sys.executable, "-m", "headwater.cli.main", "curate", "fetch", str(recipe), "--json", "--quiet"]
    process = subprocess.Popen(command, cwd=tmp_path, env=clean_environment(), stdout=subprocess.DEVNULL)
    end = time.monotonic() + 60
    while len(web.requests) < 12 and time.monotonic() < end:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = subprocess.run(command, cwd=tmp_path, env=clean_environment(), capture_output=True, check=True)
    (row,) = json.loads(done.stdout)["sources"]
    assert (row["files"], row["failed"]) == (30, [])
    files = sorted((tmp_path / ".fetched" / "far").rglob("*.txt"), key=lambda path: int(path.stem))
    assert [path.read_bytes() for path in files] == [web.pages[f"/{n}.txt"] for n in range(30)]
    assert len(web.requests) < 45, "finished files were not asked for again"


def test_a_run_fetches_first_and_records_licence_and_time(web: Web, tmp_path: Path, run_cli: RunCli) -> None:
    rows = [json.dumps({"text": f"The {n}th document of a page that was far away, 第{n}篇。"}) for n in range(30)]
    web.pages["/a.jsonl"] = "\n".join(rows).encode()
    (tmp_path / "recipe.yaml").write_text(
        "schema: 1\nname: far\ncollect:\n  sources:\n"
        f"    - {{name: far, license: CC-BY-4.0, fetch: {{urls: ['{web.url}/a.jsonl']}}}}\ntrain: {{steps: 1}}\n"
    )
    states = {row["stage"]: row for row in run_cli("status", "recipe.yaml", "--json").json["stages"]}
    assert states["collect"]["state"] == "waiting"
    result = run_cli("curate", "recipe.yaml", "--json").json
    collect = next(stage for stage in result["stages"] if stage["stage"] == "collect")
    assert collect["counts"]["documents"] == 30
    noted = json.loads((tmp_path / collect["path"] / "provenance.json").read_text())["sources"]["far"]
    assert noted["license"] == "CC-BY-4.0"
    assert noted["retrieved_first"].endswith("Z")
    again = run_cli("curate", "recipe.yaml", "--json").json
    assert again["up_to_date"]
    assert len(web.requests) == 1


ADDRESSES = st.builds(
    lambda host, path, query: f"https://{host}/{path}{query}",
    st.sampled_from(["a.example", "b.example:8080"]),
    st.text(st.sampled_from("ab/.%2e~é书 "), max_size=12),
    st.sampled_from(["", "?x=1", "?x=2"]),
)


@given(st.lists(ADDRESSES, max_size=12, unique=True))
def test_names_stay_inside_their_folder_and_differ(addresses: list[str]) -> None:
    found = wanted([(address, "") for address in addresses])
    names = [item.name for item in found]
    assert len(set(names)) == len(names) == len(addresses)
    for name in names:
        parts = name.split("/")
        assert all(part and not part.startswith(".") for part in parts)
        assert not any(other.startswith(name + "/") for other in names), "a file cannot be a folder"
    assert names == [item.name for item in wanted([(address, "") for address in addresses])]


def test_a_name_shows_where_it_is_from() -> None:
    assert local_name("https://data.example.org/crawl-data/a.warc.gz") == "data.example.org/crawl-data/a.warc.gz"
    assert local_name("https://user:secret@x.example/../../etc/passwd") == "x.example/_/_/etc/passwd"
    assert local_name("https://x.example/") == "x.example/index"


def test_a_receipt_is_void_when_a_file_of_it_is_gone(web: Web, tmp_path: Path) -> None:
    web.pages["/a"] = b"a"
    one = source(addresses=f"{web.url}/a")
    receipt = fetch_source(one, tmp_path)
    assert read_receipt(one, tmp_path) == receipt
    (receipt.folder / receipt.files[0].name).unlink()
    assert read_receipt(one, tmp_path) is None


@pytest.mark.parametrize("damage", [lambda data: data[:-20], lambda data: data[:20] + b"\xff" * 20 + data[40:]])
def test_a_list_whose_gzip_is_damaged_is_named(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    packed = gzip.compress("".join(f"https://x.example/{number * 7919}\n" for number in range(200)).encode())
    (tmp_path / "list").write_bytes(damage(packed))
    with pytest.raises(InputError, match="the list cannot be unpacked") as caught:
        fetch_source(source(lists="list"), tmp_path)
    assert caught.value.where == "list"
