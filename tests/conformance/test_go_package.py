"""The Go package's own tests, with an embedded session and with a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.conformance.clients import ROOT, go_variables, run

if TYPE_CHECKING:
    from tests.conftest import RunningServer

PACKAGE = ROOT / "bindings" / "go"


def test_vet_finds_nothing_and_the_files_are_formatted() -> None:
    variables = go_variables()
    run(["go", "vet", "./..."], PACKAGE, **variables)
    assert run(["gofmt", "-l", str(PACKAGE), str(ROOT / "tests" / "conformance")], ROOT) == ""


def test_sessions(server: RunningServer) -> None:
    variables = go_variables() | {"GODEBUG": "cgocheck=2", "LOGITPORT_TEST_TARGET": server.target}
    output = run(["go", "test", "-count=1", "-v", "./..."], PACKAGE, **variables)
    assert "--- PASS: TestStepsDraftsAndRows/server" in output
    assert "--- PASS: TestStepsDraftsAndRows/embedded" in output
