from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.console.conftest import Console
from tests.console.conftest import console as console
from tests.console.conftest import serve as serve
from tests.console.conftest import state as state
from xpk.console.access import Access, is_trusted
from xpk.console.server import open_socket
from xpk.model.errors import UsageError

PATHS = ["/", "/style.css", "/console.js", "/charts.js", "/events", "/nothing", "/?token=", "/?token=wrong"]


def test_without_a_token_every_path_is_refused_with_an_empty_body(console: Console) -> None:
    for path in PATHS:
        status, headers, body = console.get(path, Cookie="xpk-console=wrong")
        assert (status, body) == (401, ""), path
        assert "set-cookie" not in headers


def test_a_token_works_once_and_becomes_a_strict_cookie(console: Console) -> None:
    (token,) = console.tokens
    status, headers, body = console.get(f"/?token={token}")
    assert (status, headers["location"], body) == (303, "/", "")
    assert "HttpOnly" in headers["set-cookie"] and "SameSite=strict" in headers["set-cookie"]
    assert token not in headers["set-cookie"]
    assert console.get(f"/?token={token}")[0] == 401
    assert console.get("/", Cookie=headers["set-cookie"].partition(";")[0])[0] == 200
    assert len(console.tokens) == 2 and console.get(f"/?token={console.tokens[-1]}")[0] == 303


def test_a_name_that_leads_here_from_elsewhere_is_refused(console: Console) -> None:
    cookie = console.log_in()
    for host in ("evil.example", f"evil.example:{console.port}", "127.0.0.1.evil.example", ""):
        status, _, body = console.get("/", **cookie, Host=host)
        assert (status, body) == (421, ""), host
    for host in ("localhost:9000", "127.0.0.1", "[::1]:8080"):
        assert console.get("/", **cookie, Host=host)[0] == 200, host


def test_the_name_of_the_server_is_trusted_if_it_was_started_with_it() -> None:
    assert is_trusted("tpu-vm:8080", "tpu-vm") and not is_trusted("tpu-vm:8080")


def test_nothing_can_be_changed(console: Console) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"):
        assert console.get("/", method, **console.log_in())[0] == 405


def test_the_page_loads_nothing_from_elsewhere_and_runs_no_inline_script(console: Console) -> None:
    cookie = console.log_in()
    _, headers, page = console.get("/", **cookie)
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
    assert headers["cache-control"] == "no-store" and headers["referrer-policy"] == "no-referrer"
    assert not re.search(r"<script(?![^>]*\bsrc=\"/)|<style| style=|\son\w+=|https?://", page)
    for path in re.findall(r'(?:src|href)="(/[^"]+)"', page):
        status, _, body = console.get(path, **cookie)
        assert status == 200 and "http" not in body.replace("https://www.w3.org", ""), path


@pytest.mark.parametrize("host", ["", "x" * 300, "a..b", "a b", "\x1b[31m"])
def test_invalid_addresses_to_listen_on_are_refused(host: str) -> None:
    with pytest.raises(UsageError) as refusal:
        open_socket(host, 0)
    assert len(str(refusal.value)) < 500 and "\x1b" not in str(refusal.value)
    assert "--host 127.0.0.1" in refusal.value.hint


def test_tokens_are_long_and_differ() -> None:
    tokens: list[str] = []
    access = Access(tokens.append)
    assert access.exchange(tokens[-1])
    assert len(set(tokens)) == 2 and all(len(token) >= 43 for token in tokens)
    assert access.exchange("") is None and not access.admits("") and not access.admits("ä")


@pytest.mark.parametrize("cookie", ["", "xpk-console", "xpk-console=", "=;=;", "xpk-console=\xff"])
def test_odd_cookies_are_refused(console: Console, cookie: str) -> None:
    assert console.get("/", Cookie=cookie)[::2] == (401, "")


def test_the_log_and_the_output_folder_have_no_token(console: Console, state: Path) -> None:
    console.log_in()
    secrets = [*console.tokens, console.session]
    texts = [file.read_bytes() for file in state.rglob("*") if file.is_file()]
    assert not any(secret.encode() in text for secret in secrets for text in texts)
