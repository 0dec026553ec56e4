"""docs/security.md lists the layers of the sandbox and what each stops."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING

import pytest

from logitport.integrations.common.tenants import EngineRequest
from logitport_sandbox import LAYER_NAMES, WorkerLimits
from logitport_sandbox.verification.attempts import ATTEMPTS, Attempt
from logitport_server.config import ServerConfig
from tests.conftest import free_address
from tests.docs.pages import ROOT, blocks, codes, read
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

PAGE = read("docs/security.md")


def defines(path: str, name: str) -> bool:
    tree = ast.parse((ROOT / path).read_text())
    return any(isinstance(node, ast.FunctionDef) and node.name == name for node in ast.walk(tree))


def test_every_threat_names_existing_tests() -> None:
    table = codes(PAGE, "| attacker | attempt | defence | tests |")
    assert len(table) > 20
    for *_, shown_by in table:
        named = re.findall(r"(tests/[\w/]+\.py)(?:::(\w+))?", shown_by)
        assert named, shown_by
        for path, name in named:
            assert (ROOT / path).is_file(), path
            assert not name or defines(path, name), f"{path}::{name}"


def test_every_class_of_attack_is_listed() -> None:
    assert all(f"tests/attacks/{path.name}" in PAGE for path in (ROOT / "tests" / "attacks").glob("test_*.py"))


def cell_of(attempt: Attempt, layer: str) -> str:
    if frozenset() in attempt.stopped_by:
        return "always"
    if frozenset({layer}) in attempt.stopped_by:
        return "alone"
    return "together" if any(layer in layers for layers in attempt.stopped_by) else ""


def test_every_layer_is_listed() -> None:
    assert [row[0] for row in codes(PAGE, "| layer | what it does")] == list(LAYER_NAMES)


def test_the_table_of_attempts_is_the_list_of_attempts() -> None:
    table = codes(PAGE, f"| attempt | {' | '.join(LAYER_NAMES)} |")
    assert table == [[attempt.what, *(cell_of(attempt, layer) for layer in LAYER_NAMES)] for attempt in ATTEMPTS]


def test_the_limits_are_the_limits() -> None:
    shown = {row[0].partition(",")[0]: row[1] for row in codes(PAGE, "| what | default | option |")}
    limits, config = WorkerLimits(), ServerConfig()
    assert shown["memory of a worker"] == f"{config.worker_memory_bytes >> 30} GiB"
    assert shown["threads"] == str(config.worker_threads)
    assert shown["open files"] == str(limits.open_files)
    assert shown["temporary files"].startswith(f"{limits.temporary_bytes >> 20} MiB")


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
def test_the_gateway_overwrites_the_tenant(tmp_path: Path) -> None:
    seen: list[list[str]] = []

    class Engine(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers.get_all("X-Logitport-Tenant") or [])
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    engine, gateway = HTTPServer(("127.0.0.1", 0), Engine), free_address()
    example = blocks(PAGE, "nginx")[0].replace("listen 8080", f"listen {gateway}")
    example = example.replace("127.0.0.1:8000", f"127.0.0.1:{engine.server_port}")
    folders = "".join(
        f"{name}_temp_path {tmp_path / name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    config = tmp_path / "nginx.conf"
    config.write_text(
        f"daemon off; pid {tmp_path}/pid; error_log {tmp_path}/errors; events {{}}"
        f"http {{ access_log off; {folders} {example} }}"
    )
    command = ["nginx", "-p", str(tmp_path), "-c", str(config), "-e", str(tmp_path / "errors")]
    subprocess.run([*command, "-t"], check=True, capture_output=True)

    def ask(**headers: str) -> int:
        try:
            with urllib.request.urlopen(urllib.request.Request(f"http://{gateway}/v1/x", headers=headers)) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code
        except OSError:
            return 0

    threading.Thread(target=engine.serve_forever, daemon=True).start()
    process = subprocess.Popen(command)
    try:
        wait_until(lambda: ask() == 401)
        forged = {"X-Logitport-Tenant": "globex"}
        assert ask(**forged) == 401
        assert ask(Authorization="Bearer KEY-OF-ACME", **forged) == 200
        assert seen == [["acme"]]
    finally:
        process.terminate()
        process.wait(30)
        engine.shutdown()
        engine.server_close()


def test_the_operators_function() -> None:
    (example,) = [one for one in blocks(PAGE) if "def tenant_of" in one]
    names: dict[str, object] = {}
    exec(example, names)
    assert names["tenant_of"](EngineRequest({"x-account": "acme/42"})) == "acme"  # type: ignore[operator]
