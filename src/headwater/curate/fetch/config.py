"""The `fetch:` block of a source: files that lie elsewhere and are brought here first.

    FetchConfig(addresses=("https://example.org/a.jsonl.zst", "s3://bucket/books/*.parquet"))

Imports nothing heavy.
"""

from __future__ import annotations

from typing import Any

from pydantic import field_validator, model_validator

from headwater.core.config import Section, field


class FetchConfig(Section):
    """Files to bring here before they are read. What has come stays, so a broken transfer goes on where it was."""

    addresses: tuple[str, ...] = field((), aliases=("urls", "url", "address"))
    """What to fetch: `http(s)://`, or any protocol of fsspec whose package is there (`s3://`, `gs://`, `hf://datasets/
    OWNER/NAME/...`, `file://` ...). Other protocols than HTTP may use `*`, `**` and `?`."""

    lists: tuple[str, ...] = field((), aliases=("url_lists", "list"))
    """Files with an address a line, plain or gzip, relative to `collect.root`, absolute, or addresses themselves: URL
    lists, Common Crawl's `warc.paths.gz`. After white space a line may say `sha256:`, `sha1:` or `md5:` and what the
    content must have. Blank lines and those with `#` are left out."""

    base_url: str = field("")
    """Goes before the lines of `lists` that are no whole address: for Common Crawl's paths, its data host."""

    first: int = field(0, unit="files", ge=0)
    """Only the first so many lines of `lists`; 0: all."""

    max_failed_ratio: float = field(1.0, unit="ratio", ge=0, le=1, kind="operational")
    """Stop when a larger share of the files could not be fetched. Each failed one is counted in the quarantine."""

    folder: str = field(".fetched", kind="operational")
    """Where fetched files are kept, below a folder of the source's name; relative to `collect.root` or absolute."""

    connections: int = field(4, kind="operational", ge=1, le=64)
    """Files fetched at once."""

    requests_per_second: float = field(8.0, kind="operational", gt=0)
    """Most requests a second to one host."""

    retries: int = field(5, kind="operational", ge=0)
    """Further tries after a fault of the network or the server, each after twice the wait; `Retry-After` is kept to."""

    retry_seconds: float = field(1.0, unit="seconds", kind="operational", ge=0)
    """The first wait."""

    timeout_seconds: float = field(60.0, unit="seconds", kind="operational", gt=0)
    """A connection that says nothing for so long has failed."""

    options: dict[str, Any] = field(default_factory=dict, kind="operational")
    """What fsspec's file system is made with, such as {anon: true} for S3. Keep secrets in the environment."""

    @field_validator("addresses", "lists", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_something(self) -> FetchConfig:
        if not self.addresses and not self.lists:
            raise ValueError("a fetch block needs `addresses` or `lists`")
        for address in self.addresses:
            if "://" not in address:
                raise ValueError(f"{address!r} is no address; files that are here already go into `paths`")
        if self.base_url and not self.lists:
            raise ValueError("base_url completes the lines of `lists`, and there are none")
        if self.base_url and "://" not in self.base_url:
            raise ValueError(f"base_url {self.base_url!r} is no address")
        return self
