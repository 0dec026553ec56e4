"""The public names of `logitport_programs`, and the packages that it must not import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import logitport
import logitport_programs
from logitport import InvalidArgument, NotCapturable
from logitport_programs.capturing import capture


def test_the_public_names() -> None:
    assert logitport_programs.__all__ == [
        *("Element", "Parameter", "Program", "Value", "capture", "check_cost", "lift", "milliseconds", "verify")
    ]
    assert all(hasattr(logitport_programs, name) for name in logitport_programs.__all__)
    assert not {*logitport_programs.__all__} & {*logitport.__all__}
    with pytest.raises(AttributeError, match="module 'logitport_programs' has no attribute 'Nothing'"):
        _ = logitport_programs.Nothing


def test_only_tensor_processors_can_be_captured() -> None:
    with pytest.raises(NotCapturable, match="is not a subclass of TensorProcessor"):
        capture(object)  # type: ignore[arg-type]
    assert issubclass(NotCapturable, InvalidArgument)


def test_the_package_is_typed() -> None:
    assert Path(logitport_programs.__file__).with_name("py.typed").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("used", ["logitport.TensorProcessor", "logitport_programs", "logitport_programs.program"])
def test_any_module_may_be_imported_first(used: str) -> None:
    module = used.removesuffix(".TensorProcessor")
    code = f"import sys, {module}; {used}; print({{'torch', 'grpc', 'logitport_server'}} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=200)
    assert ran.stdout.strip() == "set()"
