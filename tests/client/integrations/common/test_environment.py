"""Environment variables that configure a hook's client."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from logitport import InvalidArgument, Tls
from logitport.integrations.common import environment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from logitport import Client


@pytest.fixture(autouse=True)
def target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGITPORT_TARGET", "127.0.0.1:1")
    monkeypatch.delenv("LOGITPORT_STEP_TIMEOUT_SECONDS", raising=False)


@pytest.fixture
def made() -> Iterator[list[Client]]:
    clients: list[Client] = []
    yield clients
    for client in clients:
        client.close()


@pytest.mark.parametrize("target", [None, "embedded"])
def test_without_a_server(
    made: list[Client], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, target: str | None
) -> None:
    environment._log_embedded.cache_clear()
    monkeypatch.delenv("LOGITPORT_TARGET", raising=False)
    if target is not None:
        monkeypatch.setenv("LOGITPORT_TARGET", target)
    with caplog.at_level("INFO"):
        made.append(environment.client())
    assert made[0].target == "embedded"
    (record,) = caplog.records
    assert "logitport is embedded" in record.message
    assert record.levelname == ("WARNING" if target is None else "INFO")
    assert ("LOGITPORT_TARGET is not set" in record.message) == (target is None)


@pytest.mark.parametrize(("value", "seconds"), [(None, 25.0), ("", 25.0), ("2.5", 2.5), ("30", 30.0)])
def test_the_step_timeout(
    made: list[Client], monkeypatch: pytest.MonkeyPatch, value: str | None, seconds: float
) -> None:
    if value is not None:
        monkeypatch.setenv("LOGITPORT_STEP_TIMEOUT_SECONDS", value)
    made.append(environment.client())
    assert made[0].timeout == seconds


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "soon", "1e-9", "1e300", "3601"])
def test_an_invalid_step_timeout_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("LOGITPORT_STEP_TIMEOUT_SECONDS", value)
    with pytest.raises(InvalidArgument, match=f"LOGITPORT_STEP_TIMEOUT_SECONDS is '{value}'; set it to seconds"):
        environment.client()


def test_an_invalid_choice_of_kernels_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGITPORT_CUSTOM_OPS", "apply_edits")
    with pytest.raises(InvalidArgument, match="LOGITPORT_CUSTOM_OPS is 'apply_edits'; set it to 'all' or 'none'"):
        environment.client()


@pytest.mark.parametrize(("value", "seconds"), [(None, 15.0), ("", 15.0), ("0.5", 0.5), ("120", 120.0)])
def test_the_time_to_wait_for_a_service_that_restarts(
    monkeypatch: pytest.MonkeyPatch, value: str | None, seconds: float
) -> None:
    if value is not None:
        monkeypatch.setenv("LOGITPORT_STEP_TIMEOUT_SECONDS", value)
    assert environment.reconnect_seconds() == seconds


def test_several_servers(made: list[Client], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "servers.json"
    path.write_text('[{"targets": ["127.0.0.1:1", "127.0.0.1:2"]}]')
    for target in ("127.0.0.1:1,127.0.0.1:2", f"file:{path}"):
        monkeypatch.setenv("LOGITPORT_TARGET", target)
        made.append(environment.client())
        assert made[-1].target == target.removeprefix("file:")
    monkeypatch.setenv("LOGITPORT_TARGET", f"file:{path}x")
    with pytest.raises(InvalidArgument, match=f"cannot read {path}x"):
        environment.client()


def test_a_server_name_enables_tls(made: list[Client], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGITPORT_TARGET", "10.0.0.1:1,10.0.0.2:1")
    monkeypatch.setenv("LOGITPORT_TOKEN", "secret")
    with pytest.raises(InvalidArgument, match=r"a token would be sent to 10\.0\.0\.1:1 unencrypted"):
        environment.client()
    monkeypatch.setenv("LOGITPORT_TLS_SERVER_NAME", "servers.example")
    made.append(environment.client())


@pytest.mark.parametrize("present", [("ca.crt",), ("tls.crt", "tls.key"), ("ca.crt", "tls.crt", "tls.key")])
def test_a_folder_has_the_files_of_a_kubernetes_secret(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, present: tuple[str, ...]
) -> None:
    for name in present:
        (tmp_path / name).write_text("PEM")
    monkeypatch.setenv("LOGITPORT_TLS", str(tmp_path))
    files = {name: str(tmp_path / name) for name in present}
    assert environment._tls() == Tls(files.get("ca.crt"), files.get("tls.crt"), files.get("tls.key"))


def test_a_file_is_the_certificate_of_the_authority(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGITPORT_TLS", "/etc/ca.pem")
    monkeypatch.setenv("LOGITPORT_TLS_SERVER_NAME", "servers.example")
    assert environment._tls() == Tls("/etc/ca.pem", server_name="servers.example")


def test_a_folder_without_certificates_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOGITPORT_TLS", str(tmp_path))
    with pytest.raises(InvalidArgument, match=r"LOGITPORT_TLS: the folder .* add ca\.crt"):
        environment._tls()
