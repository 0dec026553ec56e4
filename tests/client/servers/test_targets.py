"""Where the addresses of servers are listed, and when the list is read again."""

from __future__ import annotations

import json
import logging
import os
import socket
import ssl
import threading
import time
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from logitport import Client, InvalidArgument, ServerUnavailable, Tls
from logitport.servers import documents, targets
from logitport.servers.connection import Connection
from logitport.servers.targets import Address, AddressList, source_of
from tests.certificates import Authority
from tests.clock import Clock
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

LISTS: list[tuple[Any, list[str]]] = [
    ("a:1", ["a:1"]),
    ("a:1,b:2", ["a:1", "b:2"]),
    ("a:1, b:2", ["a:1", "b:2"]),
    ("unix:/run/a.sock,[::1]:2", ["unix:/run/a.sock", "[::1]:2"]),
    ("ipv4:10.0.0.1:1,10.0.0.2:1", ["ipv4:10.0.0.1:1,10.0.0.2:1"]),
    ("dns://10.0.0.1/a:1", ["dns://10.0.0.1/a:1"]),
    (["a:1", "b:2"], ["a:1", "b:2"]),
    (("unix:/with,comma",), ["unix:/with,comma"]),
]


def addresses(target: Any) -> list[str]:
    return [address.target for address in source_of(target).read()]


def document(*groups: Any) -> bytes:
    return json.dumps(groups).encode()


@pytest.mark.parametrize(("target", "listed"), LISTS)
def test_lists_of_addresses(target: Any, listed: list[str]) -> None:
    assert addresses(target) == listed
    assert not source_of(target).changes


@pytest.mark.parametrize(
    "target", [50051, None, b"a:1", {"a:1"}, [], [["a:1"]], lambda: [["a:1"]], [5], lambda: [None]]
)
def test_what_is_no_target(target: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"write HOST:PORT|lists no address"):
        AddressList(source_of(target), lambda _: None)


@pytest.mark.parametrize("form", ["file:{}", "file://{}", "file://localhost{}", "FILE:{}", "{}"])
def test_a_file_with_addresses(form: str, tmp_path: Path) -> None:
    path = tmp_path / "servers.json"
    path.write_bytes(document({"targets": ["a:1", "b:2"], "labels": {"zone": "1"}}, {"targets": ["c:3"]}))
    target = form.format(path)
    assert addresses(Path(target) if form == "{}" else target) == ["a:1", "b:2", "c:3"]


BAD_DOCUMENTS = {
    "not JSON": (b"targets: [a:1]", "is not JSON"),
    "an object": (b'{"targets": ["a:1"]}', "is not a list"),
    "a list of texts": (b'["a:1"]', 'element 0 has no list of texts in "targets"'),
    "targets as a text": (document({"targets": ["a:1"]}, {"targets": "b:1"}), "element 1 has no list"),
    "a number": (document({"targets": [5]}), "element 0 has no list"),
    "no targets": (document({"labels": {}}), "element 0 has no list"),
    "no address": (document({"targets": []}), "lists no address"),
    "no port": (document({"targets": ["a"]}), "'a' has no port"),
    "too large": (b" " * (documents.MAX_BYTES + 1), "has more than 1048576 bytes"),
    "deep": (b"[" * 100_000, "is not JSON"),
}


def refuse_without_port(target: str) -> None:
    if ":" not in target:
        raise InvalidArgument(f"target {target!r} has no port")


@pytest.mark.parametrize(("content", "reason"), BAD_DOCUMENTS.values(), ids=BAD_DOCUMENTS.keys())
def test_a_document_that_is_malformed_at_start(content: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "servers.json"
    path.write_bytes(content)
    with pytest.raises(InvalidArgument, match=reason) as refused:
        AddressList(source_of(path), refuse_without_port)
    assert str(path) in str(refused.value)


def test_a_file_that_cannot_be_read_at_start(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=rf"cannot read {tmp_path}/none\.json, .*: No such file"):
        AddressList(source_of(f"file:{tmp_path}/none.json"), print)


def test_the_list_is_read_again_when_it_is_old(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    path, clock = tmp_path / "servers.json", Clock(1000.0)
    path.write_bytes(document({"targets": ["a:1", "a:1"]}))
    listed = AddressList(source_of(path), refuse_without_port, clock)
    assert listed.addresses == (Address("a:1"),)
    assert not listed.single, "another address may be added"
    path.write_bytes(document({"targets": ["b:2"]}))
    clock.now += 2.9
    listed.refresh()
    assert listed.addresses == (Address("a:1"),)
    clock.now += 0.2
    listed.refresh()
    assert listed.addresses == (Address("b:2"),)
    assert "now lists b:2" in caplog.text


@pytest.mark.parametrize("content", [b"", b"[]", document({"targets": ["without-port"]}), None])
def test_a_later_list_that_cannot_be_used(
    content: bytes | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, clock = tmp_path / "servers.json", Clock(1000.0)
    path.write_bytes(document({"targets": ["a:1"]}))
    listed = AddressList(source_of(path), refuse_without_port, clock)
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    for _ in range(2):
        clock.now += 4
        listed.refresh()
        listed.refresh()
    assert listed.addresses == (Address("a:1"),)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert str(path) in caplog.text
    assert "the last addresses stay in use: a:1" in caplog.text
    path.write_bytes(document({"targets": ["c:1"]}))
    clock.now += 4
    listed.refresh()
    assert listed.addresses == (Address("c:1"),)


def test_only_one_thread_reads() -> None:
    reading, go_on, clock = threading.Event(), threading.Event(), Clock(1000.0)
    calls = []

    def read() -> list[str]:
        calls.append(1)
        if len(calls) > 1:
            reading.set()
            assert go_on.wait(60)
        return ["a:1"]

    listed = AddressList(source_of(read), print, clock)
    clock.now += 4
    thread = threading.Thread(target=listed.refresh)
    thread.start()
    assert reading.wait(60)
    listed.refresh()
    go_on.set()
    thread.join()
    assert len(calls) == 2


def test_a_function() -> None:
    assert addresses(lambda: "a:1, b:2") == ["a:1", "b:2"]
    assert addresses(lambda: ("a:1", "b:2")) == ["a:1", "b:2"]

    def fails() -> list[str]:
        raise RuntimeError("no cluster")

    with pytest.raises(ServerUnavailable, match=r"the function .*fails .* raised RuntimeError: no cluster"):
        addresses(fails)
    with pytest.raises(ServerUnavailable, match="raised TypeError"):
        addresses(lambda: None)


IPV4 = (socket.AF_INET, ("10.0.0.1", 50051)), (socket.AF_INET, ("10.0.0.2", 50051))
IPV6 = ((socket.AF_INET6, ("2001:db8::1", 50051, 0, 0)),)


@pytest.mark.parametrize(
    ("found", "hosts"),
    [
        (IPV4, ["10.0.0.1", "10.0.0.2"]),
        (IPV6, ["[2001:db8::1]"]),
        ([*IPV4, *IPV6], ["10.0.0.1", "10.0.0.2"]),
        ([*IPV6, *IPV4], ["[2001:db8::1]"]),
    ],
)
def test_all_addresses_of_a_name(monkeypatch: pytest.MonkeyPatch, found: Any, hosts: list[str]) -> None:
    """Of one family: a server that has addresses of both would count as two."""
    asked = []

    def resolve(host: str, port: int, **kind: int) -> list[Any]:
        asked.append((host, port))
        (type_,) = kind.values()
        return [(family, type_, 6, "", address) for family, address in found]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    listed = source_of("dns:///servers.example:50051").read()
    assert listed == [Address(f"{host}:50051", "servers.example") for host in hosts]
    assert addresses("dns:servers.example") == [f"{host}:443" for host in hosts]
    assert asked == [("servers.example", 50051), ("servers.example", 443)]


def test_a_name_that_cannot_be_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with pytest.raises(ServerUnavailable, match=r"cannot resolve dns:///a:1: .*not known"):
        addresses("dns:///a:1")


@contextmanager
def web(pages: dict[str, tuple[int, bytes]], context: ssl.SSLContext | None = None) -> Iterator[str]:
    """Serve documents on this machine: status and content, by path. The context is the URL of the server."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, content = pages[self.path]
            self.send_response(status)
            self.send_header("Location", "/servers")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http{'s' if context else ''}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_document_on_the_web() -> None:
    good = 200, document({"targets": ["a:1"]})
    refused = {f"/{status}": (status, good[1]) for status in (302, 404, 500)}
    too_large = 200, b" " * (2 * documents.MAX_BYTES)
    with web({"/servers": good, "/?zone=1": good, "/large": too_large, **refused}) as url:
        assert addresses(f"{url}/servers") == addresses(f"{url}/?zone=1") == ["a:1"]
        for path, (status, _) in refused.items():
            with pytest.raises(ServerUnavailable, match=f"status {status}"):
                addresses(url + path)
        with pytest.raises(InvalidArgument, match="bytes"):
            addresses(f"{url}/large")


@contextmanager
def trickling(first: bytes = b"", byte: bytes = b"x") -> Iterator[int]:
    """The port of a web server that sends a byte from time to time, so that no single wait is long."""
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def trickle() -> None:
            peer, _ = listening.accept()
            with peer, suppress(OSError):
                peer.sendall(first)
                while not ended.wait(0.05):
                    peer.send(byte)

        thread = threading.Thread(target=trickle)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            ended.set()
            thread.join()


HEAD = b"HTTP/1.0 200 OK\r\n\r\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "byte"), [(b"", b"x"), (HEAD, b" "), (HEAD + document({"targets": ["a:1"]}), b" "), (HEAD + b"[]", b" ")]
)
def test_a_document_that_arrives_slowly_and_may_be_cut_off_is_not_used(
    first: bytes, byte: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a length, the end of the connection is its end, and `http.client` drops the socket before it."""
    monkeypatch.setattr(targets, "_READ_SECONDS", 0.3)
    with trickling(first, byte) as port, pytest.raises(ServerUnavailable, match="cannot read http://127"):
        addresses(f"http://127.0.0.1:{port}/servers")


def test_a_connection_that_takes_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no socket at the time limit, and sends a byte from time to time after that."""
    monkeypatch.setattr(targets, "_READ_SECONDS", 0.1)
    connect = socket.create_connection
    monkeypatch.setattr(socket, "create_connection", lambda *some, **more: time.sleep(0.3) or connect(*some, **more))
    with trickling() as port, pytest.raises(ServerUnavailable, match="cannot read http://127"):
        addresses(f"http://127.0.0.1:{port}/servers")


def test_a_reply_that_is_not_http() -> None:
    with trickling(b"H\x1b[2J" * 10_000, b"\n") as port, pytest.raises(ServerUnavailable) as refused:
        addresses(f"http://127.0.0.1:{port}/servers")
    assert r"(BadStatusLine: 'H\x1b[2JH" in str(refused.value)
    assert len(str(refused.value)) < 300


def test_a_named_pipe(tmp_path: Path) -> None:
    """A read of one would last until another process writes to it."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(InvalidArgument, match=f"{path} is not a regular file"):
        AddressList(source_of(path), print)


def test_a_url_of_a_file_is_decoded(tmp_path: Path) -> None:
    path = tmp_path / "a b%.json"
    path.write_bytes(document({"targets": ["a:1"]}))
    assert addresses(f"file://{tmp_path}/a%20b%25.json") == ["a:1"]
    assert addresses(path) == ["a:1"]


def test_a_list_over_https(tmp_path: Path) -> None:
    """The authority of the servers may have signed its certificate; one of an unknown authority is not read."""
    authority = Authority(tmp_path)
    files = authority.issue_server()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert, files.key)
    with web({"/servers": (200, document({"targets": ["a:1"]}))}, context) as server:
        url, tls = f"{server}/servers", Tls(ca=authority.ca)
        assert source_of(url, Connection.prepare("", tls).ca).read() == [Address("a:1")]
        with Client(url, tls=tls) as client:
            assert client.target == url
        with pytest.raises(ServerUnavailable, match=r"CERTIFICATE_VERIFY_FAILED.*Tls\(ca=...\)"):
            Client(url, tls=Tls())


class Hanging:
    """A function that lists addresses and hangs while a flag is set."""

    def __init__(self) -> None:
        self.hangs = True
        self.goes_on = threading.Event()
        self.calls = 0

    def __call__(self) -> list[str]:
        self.calls += 1
        if self.hangs:
            self.goes_on.wait(60)
        return [f"a:{self.calls}"]


def test_a_list_that_is_not_read_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "_READ_SECONDS", 0.05)
    hanging = Hanging()
    with pytest.raises(ServerUnavailable, match=r"not read in 0.05 s"):
        AddressList(source_of(hanging), lambda _: None)
    hanging.goes_on.set()


def test_a_list_that_is_not_read_again_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller has the last list, and one read is enough for all. The result of a late one is used."""
    hanging, now = Hanging(), [0.0]
    hanging.hangs = False
    listed = AddressList(source_of(hanging), lambda _: None, lambda: now[0])
    hanging.hangs = True
    monkeypatch.setattr(targets, "_WAIT_SECONDS", 0.01)
    for _ in range(5):
        now[0] += 4
        listed.refresh()
        assert [one.target for one in listed.addresses] == ["a:1"]
    assert hanging.calls == 2
    hanging.goes_on.set()
    wait_until(lambda: listed.addresses[0].target == "a:2")


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://a", "is a URL; write HOST:PORT"),
        ("https://a:1/", "is a URL; write HOST:PORT"),
        ("http://:1/x", "is a URL; write HOST:PORT"),
        ("http://a:x/y", "is not a valid URL"),
        ("https://u:p@a/x", "the URL of a document on a has a user name or password"),
        *(
            (target, "names no file of this machine")
            for target in ("file://host/x.json", "file://x.json", "file:", "file://localhost")
        ),
    ],
)
def test_a_url_that_is_no_document_or_file(url: str, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        source_of(url)


def test_what_decides_where_a_token_is_sent() -> None:
    assert source_of("HTTP://a/x").unencrypted_host == "a:80"
    assert source_of("HTTPS://a/x").changes
    assert source_of("dns:///a:1").name == "dns:///a:1"
    assert source_of("http://a/x").unencrypted_host == "a:80"
    assert source_of("http://[::1]:5/x").unencrypted_host == "[::1]:5"
    assert source_of("https://a/x").unencrypted_host == ""
