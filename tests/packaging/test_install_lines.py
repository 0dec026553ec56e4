"""Install commands: how they are found, and what they must not require. `make check-install` resolves them."""

from __future__ import annotations

import re

import pytest

from tests.packaging import __main__ as check
from tests.packaging.install_lines import ROOT, InstallLine, commands, install_lines

# Builds of torch for GPUs pin these.
PINNED_BY_TORCH = re.compile(
    r"^\W*(triton|nvidia-[a-z0-9-]+|cuda-bindings|cuda-toolkit|sympy|networkx)==", re.MULTILINE
)


@pytest.mark.parametrize("path", ["pyproject.toml", "constraints.txt", "tests/engines/sglang/requirements.txt"])
def test_nothing_pins_what_torch_pins(path: str) -> None:
    assert not PINNED_BY_TORCH.findall((ROOT / path).read_text())


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("\t.venv/bin/pip install -q -c pins.txt -e '.[server,test]' # why", ["-c pins.txt -e .[server,test]"]),
        ("Run `pip install '.[play]'`, then `pip install .`.", [".[play]", "."]),
        ("a && pip install vllm==1 && b", ["vllm==1"]),
        ("pip install one || { echo 'failed'; exit 1; }", ["one"]),
        ("pip download --no-deps -d .peers sglang==1", ["--no-deps sglang==1"]),
        ("pip install --index-url https://index torch", ["torch"]),
        ("pip install core/build/wheels/*.whl", []),
        ("`pip install` takes the file", []),
    ],
)  # fmt: skip
def test_commands_of_a_text(text: str, arguments: list[str]) -> None:
    assert [" ".join(one) for one in commands(text)] == arguments


def test_the_commands_of_the_project_are_found() -> None:
    found = {(line.source, line.arguments[-1]) for line in install_lines()}
    assert {("README.md", ".[server,torch]"), ("README.md", ".[server,play]")} <= found
    assert {source for source, _ in found} >= {
        "make",
        "deploy/Containerfile",
        "docs/engines/llama-cpp.md",
        "CONTRIBUTING.md",
    }


def test_the_demo_installs_no_tools_of_developers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.packaging.install_lines._TARGETS", ("demo",))
    (extras,) = [line.arguments[-1] for line in install_lines() if line.source == "make" and "[" in line.arguments[-1]]
    assert extras == ".[server,play,transformers,demo]"


def test_a_command_that_cannot_be_resolved_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [InstallLine("README.md", ("good",)), InstallLine("make", ("bad", "worse"))]
    monkeypatch.setattr(check, "install_lines", lambda: lines)
    monkeypatch.setattr(check, "resolve", lambda line, *_: "the reason" if "bad" in line.arguments else None)
    with pytest.raises(SystemExit, match="1"):
        check.main()
    printed = capsys.readouterr()
    assert "make: pip install bad worse, Python 3.10:\nthe reason" in printed.err
    assert printed.out == "4 of 8 installs can be resolved\n"


def test_no_index_skips_the_check(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(check, "resolve", lambda *_: "no route")
    check.main()
    assert "skipped: no package index can be reached\nno route" in capsys.readouterr().err


def test_only_the_index_and_the_certificates_of_pip_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_FIND_LINKS", "/wheels")
    monkeypatch.setenv("PIP_INDEX_URL", "https://index/simple")
    monkeypatch.setenv("PIP_CERT", "/certificates.pem")
    options, environment = check._index()
    assert options == ["--default-index", "https://index/simple"]
    assert environment["SSL_CERT_FILE"] == "/certificates.pem"
    assert not [name for name in environment if name.startswith("PIP_")]
