"""Object stores and hubs: the real client packages against servers on this machine that speak their protocols."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headwater.core.documents import read_documents
from headwater.core.executor import InlineExecutor
from headwater.core.progress import SILENT
from headwater.core.shards import ShardFolder
from headwater.core.stage import StageContext
from headwater.curate.config import CollectConfig, SourceConfig
from headwater.curate.fetch.config import FetchConfig
from headwater.curate.fetch.fetch import fetch_missing
from headwater.curate.stage import collect_into

Answer = Callable[[str, str, bytes, Any], tuple[int, dict[str, str], bytes]]
"""(method, path with query, body, headers) -> status, headers, content."""


@contextmanager
def serve(answer: Answer) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments: Any) -> None: ...

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, headers, content = answer(self.command, self.path, body, self.headers)
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        do_HEAD = do_POST = do_GET

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def parquet(folder: Path, texts: list[str]) -> bytes:
    path = folder / "made.parquet"
    pq.write_table(pa.table({"text": texts}), path)
    return path.read_bytes()


def texts_of(fetch: dict[str, Any], folder: Path) -> list[str]:
    """Fetch a source's files and collect their documents."""
    settings = FetchConfig(**{"requests_per_second": 1000.0, "retry_seconds": 0.01, **fetch})
    config = CollectConfig(root=str(folder), sources=(SourceConfig(name="far", fetch=settings),))
    (receipt,) = fetch_missing(config)
    assert not receipt.failed
    (folder / "out").mkdir()
    collect_into(ShardFolder(folder / "out"), config, StageContext(folder, InlineExecutor(), SILENT))
    return [d.text for path in sorted(folder.glob("out/documents/*.parquet")) for d in read_documents(path)]


def test_a_hugging_face_datasets_parquet_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("huggingface_hub", reason="the package huggingface_hub is not installed (extra `hub`)")
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    content = parquet(tmp_path, ["One document.", "另一篇。"])
    names = ["data/train-00000.parquet", "data/train-00001.parquet", "data/test-00000.parquet"]
    files = [{"type": "file", "oid": "b" * 40, "size": len(content), "path": name} for name in names]
    folder = {"type": "directory", "oid": "c" * 40, "path": "data"}

    def answer(method: str, target: str, body: bytes, headers: Any) -> tuple[int, dict[str, str], bytes]:
        path = urlsplit(target).path
        if "/resolve/" in path:
            return 200, {"ETag": '"x"'}, content
        if method == "POST":  # paths-info
            wanted = parse_qs(body.decode()).get("paths") or json.loads(body).get("paths", [])
            listed = [item for item in [folder, *files] if item["path"] in wanted]
        elif "/tree/" in path:
            listed = files if path.endswith("/data") else [folder]
        else:
            return 200, {"Content-Type": "application/json"}, b'{"id": "owner/name", "sha": "' + b"a" * 40 + b'"}'
        return 200, {"Content-Type": "application/json"}, json.dumps(listed).encode()

    with serve(answer) as url:
        fetch = {
            "addresses": ["hf://datasets/owner/name/data/train-*.parquet"],
            "options": {"endpoint": url, "token": False, "skip_instance_cache": True},
        }
        assert texts_of(fetch, tmp_path) == ["One document.", "另一篇。"] * 2


def test_a_bucket_of_s3_is_read(tmp_path: Path) -> None:
    pytest.importorskip("s3fs", reason="the package s3fs is not installed (extra `s3`)")
    content = parquet(tmp_path, ["in a bucket", "桶里"])
    keys = ["books/a/0.parquet", "books/b/1.parquet", "books/notes.txt"]

    def answer(method: str, target: str, body: bytes, headers: Any) -> tuple[int, dict[str, str], bytes]:
        split = urlsplit(target)
        key = unquote(split.path).removeprefix("/bucket").lstrip("/")
        if method == "GET" and not key:
            query = {name: values[0] for name, values in parse_qs(split.query).items()}
            return (
                200,
                {"Content-Type": "application/xml"},
                listing(query.get("prefix", ""), query.get("delimiter", "")),
            )
        if key not in keys:
            return 404, {}, b""
        facts = {"ETag": '"abc"', "Last-Modified": "Wed, 01 Jan 2025 00:00:00 GMT", "Content-Type": "x/y"}
        asked = headers.get("Range", "").removeprefix("bytes=")
        if method == "HEAD" or not asked:
            return 200, {**facts, "Content-Length": str(len(content))}, b"" if method == "HEAD" else content
        first, _, last = asked.partition("-")
        part = content[int(first) : int(last) + 1 if last else None]
        span = f"bytes {first}-{int(first) + len(part) - 1}/{len(content)}"
        return 206, {**facts, "Content-Range": span}, part

    def listing(prefix: str, delimiter: str) -> bytes:
        below = [key for key in keys if key.startswith(prefix)]
        folders = {key[: key.index("/", len(prefix)) + 1] for key in below if delimiter and "/" in key[len(prefix) :]}
        rows = "".join(
            f"<Contents><Key>{key}</Key><Size>{len(content)}</Size><ETag>abc</ETag>"
            "<LastModified>2025-01-01T00:00:00.000Z</LastModified><StorageClass>STANDARD</StorageClass></Contents>"
            for key in below
            if not any(key.startswith(folder) for folder in folders)
        )
        more = "".join(f"<CommonPrefixes><Prefix>{folder}</Prefix></CommonPrefixes>" for folder in sorted(folders))
        return (
            '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>bucket</Name>'
            f"<IsTruncated>false</IsTruncated><KeyCount>{len(below)}</KeyCount>{rows}{more}</ListBucketResult>"
        ).encode()

    with serve(answer) as url:
        options = {"anon": True, "endpoint_url": url, "skip_instance_cache": True}
        fetch = {"addresses": ["s3://bucket/books/**/*.parquet"], "options": options}
        assert texts_of(fetch, tmp_path) == ["in a bucket", "桶里"] * 2
