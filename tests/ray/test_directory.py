"""The list over HTTP: what clients and Prometheus get."""

from __future__ import annotations

import json
import ssl
import urllib.request
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError

import pytest

from logitport import ServerUnavailable
from logitport.servers.targets import AddressList, source_of
from logitport_fleet.directory import METRICS_LABEL, PATH, Directory, document
from logitport_server.processes.server_report import ServerReport
from tests.certificates import Authority

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

READY = [ServerReport(f"127.0.0.1:{port}", f"127.0.0.1:{port + 1000}", "ready") for port in (1001, 1002)]


@pytest.fixture
def directory() -> Iterator[Directory]:
    opened = Directory("127.0.0.1", 0)
    yield opened
    opened.close()


def url(directory: Directory, scheme: str = "http") -> str:
    return f"{scheme}://localhost:{directory.server_port}{PATH}"


def get(url: str, **options: Any) -> Any:
    with urllib.request.urlopen(url, timeout=60, **options) as reply:
        assert reply.headers["Content-Type"] == "application/json"
        return json.load(reply)


def test_one_document_for_clients_and_prometheus(directory: Directory) -> None:
    directory.publish(document([*READY, ServerReport("127.0.0.1:1003", "127.0.0.1:2003", "unhealthy")]))
    assert get(url(directory)) == [
        {"targets": ["127.0.0.1:1001"], "labels": {METRICS_LABEL: "127.0.0.1:2001"}},
        {"targets": ["127.0.0.1:1002"], "labels": {METRICS_LABEL: "127.0.0.1:2002"}},
    ]
    addresses = AddressList(source_of(url(directory)), check=lambda _: None).addresses
    assert [address.target for address in addresses] == ["127.0.0.1:1001", "127.0.0.1:1002"]


def test_a_client_keeps_its_list_while_no_server_is_ready(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logitport.servers.targets._MIN_AGE_SECONDS", 0.0)
    directory.publish(document(READY))
    listed = AddressList(source_of(url(directory)), check=lambda _: None)
    directory.publish(document([ServerReport("127.0.0.1:1001", "", "starting")]))
    listed.refresh()
    assert len(listed.addresses) == 2
    with pytest.raises(ServerUnavailable, match="503"):
        AddressList(source_of(url(directory)), check=lambda _: None)
    directory.publish(document(READY[:1]))
    listed.refresh()
    assert len(listed.addresses) == 1


def test_other_paths(directory: Directory) -> None:
    directory.publish(document(READY))
    for path in ("", "/", "/targets/", "/targets?x=1", "/../etc/passwd"):
        with pytest.raises(HTTPError) as refused:
            get(url(directory).removesuffix(PATH) + path)
        assert refused.value.code == 404
        refused.value.close()


def test_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = authority.issue_server()
    opened = Directory("127.0.0.1", 0, (files.cert, files.key))
    try:
        opened.publish(document(READY))
        trusting = ssl.create_default_context(cafile=str(authority.ca))
        assert len(get(url(opened, "https"), context=trusting)) == 2
        opened.refresh_certificate()
        assert len(get(url(opened, "https"), context=trusting)) == 2
    finally:
        opened.close()
