"""Effects of a payload, found without loading it."""

from __future__ import annotations

import io
import json
import os
import pickle
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.cloudpickled import serialize, shifts
from tests.conftest import COMMAND

if TYPE_CHECKING:
    from pathlib import Path

from logitport import CustomLogitProcessor, PayloadError, payload
from logitport_server.registry.inspection import Function, inspect_pickle


class Curious(CustomLogitProcessor):
    def __init__(self) -> None:
        self.environment = os.environ

    def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
        subprocess.run("curl http://example.com/" + "x" * 0, shell=True, check=False)
        return logits


class Touches:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


def inspect(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMMAND, "payload", "inspect", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )


def of(pickled: bytes) -> str:
    return json.dumps({"callable": pickled.hex()})


def test_a_class_that_was_shipped() -> None:
    found = inspect_pickle(payload.parse(Curious.to_str()).data)
    assert "from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor" in found.imports
    functions = {function.name: function for function in found.functions}
    assert functions["Curious.__init__"].uses[:2] == ("os", "environ")
    assert {"subprocess", "run"} <= set(functions["Curious.__call__"].uses)
    assert any("curl http://example.com/" in text for text in functions["Curious.__call__"].strings)


def test_functions_that_cloudpickle_shipped() -> None:
    """It computes the constructor of code objects."""
    found = inspect_pickle(payload.parse(serialize(shifts(CustomLogitProcessor))).data)
    functions = {function.name: function for function in found.functions}
    assert {"scaled", "torch"} <= set(functions["Shifts.__call__"].uses)
    assert functions["scaled"].uses == ("SCALE",)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_calls_of_unpickling_are_reported_but_not_run(tmp_path: Path, protocol: int) -> None:
    made = tmp_path / "made"
    found = inspect_pickle(pickle.dumps(Touches(str(made)), protocol))
    assert [line.rpartition(" ")[2] for line in found.imports][-1:] == ["system"]
    assert any(f"system('touch {made}')" in statement for statement in found.statements)
    assert not made.exists()


def test_bytes_and_long_strings_are_abbreviated() -> None:
    (statement,) = inspect_pickle(pickle.dumps([b"x" * 1000, "y" * 1000])).statements
    assert "<1000 bytes>" in statement
    assert "(1000 characters)" in statement
    assert len(statement) < 400


@pytest.mark.parametrize("data", [b"", b"\x80\x04", b"nonsense", b"."])
def test_an_invalid_pickle(data: bytes) -> None:
    with pytest.raises(PayloadError, match="do not run it"):
        inspect_pickle(data)


@pytest.mark.slow
def test_the_command(tmp_path: Path) -> None:
    file = tmp_path / "payload.json"
    file.write_text(Curious.to_str())
    done = inspect(str(file))
    assert done.returncode == 0, done.stderr
    assert f"digest: {payload.parse(Curious.to_str()).digest}\n" in done.stdout
    assert "signature: none\n" in done.stdout
    assert "\n    from abc import ABCMeta\n" in done.stdout
    assert "\n    Curious.__init__: os, environ" in done.stdout
    assert "class: Curious, dialect sglang\n" in done.stdout
    assert inspect("-", stdin=Curious.to_str()).stdout == done.stdout


@pytest.mark.slow
def test_signatures_are_reported(tmp_path: Path) -> None:
    key, trusted = tmp_path / "key", tmp_path / "trusted"
    for arguments in (["payload", "keygen", str(key)], ["payload", "sign", "-", "--key", str(key), "--name", "team/x"]):
        done = subprocess.run(
            [COMMAND, *arguments], input=Curious.to_str(), capture_output=True, text=True, check=True, timeout=200
        )
    signed = done.stdout
    assert key.stat().st_mode & 0o777 == 0o600
    assert "for team/x, until 20" in inspect("-", stdin=signed).stdout
    assert "not checked: give --trusted-keys" in inspect("-", stdin=signed).stdout
    trusted.mkdir()
    (tmp_path / "key.pub").rename(trusted / "key.pub")
    check = ("-", "--trusted-keys", str(trusted))
    assert "; valid\n" in inspect(*check, stdin=signed).stdout
    assert "; REFUSED: the signature does not fit" in inspect(*check, stdin=signed.replace("team/x", "team/y")).stdout
    again = subprocess.run(
        [COMMAND, "payload", "keygen", str(key)], capture_output=True, text=True, check=False, timeout=200
    )
    assert again.returncode == 1
    assert again.stderr == f"logitport: cannot write {key}: File exists; choose another path\n"


def test_a_report_has_no_control_characters() -> None:
    data = b"\x80\x04\x8c\x02os\x8c\x0dsys\x1b[2Jtem\nok\x93."
    done = inspect("-", stdin=of(data))
    assert "\x1b" not in done.stdout + done.stderr
    assert "\nok" not in done.stdout


@pytest.mark.slow
def test_a_pickle_of_exponential_size_is_refused() -> None:
    bomb = io.BytesIO()
    bomb.write(b"\x80\x04N\x94")
    for level in range(60):
        bomb.write(b"h" + bytes([level]) + b"\x86\x94")
    bomb.write(b".")
    done = inspect("-", "--cpu-seconds", "2", stdin=of(bomb.getvalue()))
    assert done.returncode == 1
    assert "do not run it" in done.stderr
    assert "Traceback" not in done.stderr


def test_inspecting_imports_no_module_of_the_payload() -> None:
    code = f"""
import sys
from logitport_server.registry.inspection import inspect_pickle
inspect_pickle(bytes.fromhex({b"cantigravity" + bytes([10]) + b"fly" + bytes([10]) + b"."!r}.hex()))
assert "antigravity" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=200)


def test_a_function_without_names() -> None:
    assert inspect_pickle(payload.parse(Empty.to_str()).data).functions == (Function("Empty.__call__", (), ()),)


class Empty(CustomLogitProcessor):
    def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
        return logits
