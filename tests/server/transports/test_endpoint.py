"""TLS files that cannot be used, and secrets that all users can read."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from logitport_server.config import ServerConfig
from logitport_server.lifecycle.start_errors import StartupError
from logitport_server.transports.endpoint import check_exposure, listen
from tests.certificates import Authority

if TYPE_CHECKING:
    from pathlib import Path


async def start(config: ServerConfig) -> str:
    server = grpc.aio.server()
    try:
        address = listen(server, config)
        await server.start()  # one that has not been started keeps its sockets
        return address
    finally:
        await server.stop(None)


@pytest.mark.parametrize(
    ("key", "kind"),
    [(ed25519.Ed25519PrivateKey.generate(), "Ed25519"), (ec.generate_private_key(ec.SECP521R1()), "secp521r1")],
    ids=["ed25519", "p521"],
)
def test_a_key_with_which_no_handshake_succeeds(
    tmp_path: Path, key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey, kind: str
) -> None:
    pair = Authority(tmp_path).issue_for(key, "server")
    config = ServerConfig(listen="127.0.0.1:0", tls_cert=pair.cert, tls_key=pair.key)
    with pytest.raises(StartupError, match=f"--tls-cert {pair.cert} has a key of the type {kind}"):
        asyncio.run(start(config))


def test_keys_with_which_handshakes_succeed(tmp_path: Path) -> None:
    for name, curve in (("p256", ec.SECP256R1()), ("p384", ec.SECP384R1())):
        pair = Authority(tmp_path).issue_for(ec.generate_private_key(curve), name)
        config = ServerConfig(listen="127.0.0.1:0", tls_cert=pair.cert, tls_key=pair.key)
        assert asyncio.run(start(config)).startswith("127.0.0.1:")


def test_a_secret_that_all_users_can_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pair, store_key = Authority(tmp_path).issue_server(), tmp_path / "store.key"
    store_key.write_text("0" * 64)
    config = ServerConfig(tls_cert=pair.cert, tls_key=pair.key, store=str(tmp_path / "store"), store_key=store_key)
    for mode in (0o644, 0o640):
        caplog.clear()
        pair.key.chmod(mode), store_key.chmod(mode)
        with caplog.at_level(logging.WARNING):
            check_exposure(config)
        expected = [f"--tls-key {pair.key} is secret", f"--store-key {store_key} is secret"] if mode & 4 else []
        assert [text.partition(",")[0] for text in caplog.messages] == expected
