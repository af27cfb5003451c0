"""Where the server may listen, and where its key comes from."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.core.config import identity
from headwater.core.errors import InputError, UserError
from headwater.serve.config import ServeConfig, is_loopback, read_api_key


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.8.9.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("box", False)],
)
def test_loopback_is_recognised(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_an_open_address_without_a_key_is_refused_unless_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADWATER_API_KEY", raising=False)
    with pytest.raises(UserError, match="no API key") as caught:
        read_api_key(ServeConfig(host="0.0.0.0"))
    assert "allow_unauthenticated" in caught.value.mend
    assert read_api_key(ServeConfig(host="0.0.0.0", allow_unauthenticated=True)) is None
    monkeypatch.setenv("HEADWATER_API_KEY", "k")
    assert read_api_key(ServeConfig(host="0.0.0.0")) == "k"


def test_a_key_file_wins_over_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWATER_API_KEY", "other")
    (tmp_path / "key").write_text("from file\nrest\n")
    assert read_api_key(ServeConfig(api_key_file=str(tmp_path / "key"))) == "from file"


def test_an_empty_key_is_a_mistake_not_an_open_door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text("\n")
    with pytest.raises(InputError, match="empty"):
        read_api_key(ServeConfig(api_key_file=str(tmp_path / "key")))
    with pytest.raises(InputError, match="cannot read"):
        read_api_key(ServeConfig(api_key_file=str(tmp_path / "missing")))
    monkeypatch.setenv("HEADWATER_API_KEY", "")
    with pytest.raises(InputError, match="empty"):
        read_api_key(ServeConfig())


def test_nothing_of_it_enters_a_fingerprint() -> None:
    assert identity(ServeConfig()) == {}
