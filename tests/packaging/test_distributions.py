"""Distributions that `make dist` builds: their content, and their installation with each extra."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from email.parser import Parser
from email.policy import default
from typing import TYPE_CHECKING

import pytest

from logitport.core.compiled import VARIABLE
from tests.core.conftest import can_build
from tests.packaging.conftest import ROOT

if TYPE_CHECKING:
    from email.message import EmailMessage
    from pathlib import Path

    from tests.packaging.conftest import Distributions

# A hang is bounded only: an installation that compiles the core takes minutes on a busy machine.
_SECONDS = 800
pytestmark = pytest.mark.timeout(900)

PACKAGES = (
    "logitport",
    "logitport_builtins",
    "logitport_core",
    "logitport_fleet",
    "logitport_lint",
    "logitport_play",
    "logitport_programs",
    "logitport_proto",
    "logitport_recording",
    "logitport_runner",
    "logitport_sandbox",
    "logitport_server",
    "logitport_session",
    "logitport_testing",
)
_SIMULATED = (
    "from logitport_testing import StoryModel, simulate; model = StoryModel(); "
    "simulate([('top_p', {'top_p': 0.9}), ('dry', {'dry_multiplier': 0.8})], model, model.encode('Once'), steps=2)"
)
# Extras for users, each with a program that uses it. Those with large packages are only looked up.
USES = {
    "": "import logitport; logitport.Client('127.0.0.1:1').close(); logitport.payload",
    "signing": "from logitport.payload.signing import read_private_key",
    "redis": "import redis",
    "otel": "import opentelemetry.sdk, opentelemetry.exporter.otlp.proto.grpc, opentelemetry.exporter.otlp.proto.http",
    "vllm": "import logitport.integrations.vllm.requested_chain",
    "llama-cpp": "import logitport.integrations.llama_cpp",
    "mlx-lm": "import logitport.integrations.mlx_lm",
    "tokenizers": "import tokenizers; import logitport.tokenizers.token_bytes",
    "grammar": "from llguidance import LLMatcher; import logitport_builtins.grammar.masks",
    "server": "import logitport_server.server, logitport_server.principal_process.preload; " + _SIMULATED,
    "server,testing": "import logitport_testing.laws; " + _SIMULATED,
    "server,play": "import logitport_play.web.serving; " + _SIMULATED,
}
WITH_TORCH = {
    "torch": "from logitport import TensorProcessor; from logitport_programs import capture",
    "transformers": "import torch; import logitport.integrations.common.history_batch",  # the hook imports transformers
    "sglang": "import logitport.integrations.sglang",
}
RESOLVED = ("cuda", "ray")
# The Makefile installs them.
OF_DEVELOPERS = ("bench", "browser", "dashboard", "demo", "docs", "fleet-test", "lint", "test")


def metadata(distributions: Distributions) -> EmailMessage:
    with zipfile.ZipFile(distributions.wheel) as wheel:
        (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
        return Parser(policy=default).parsestr(wheel.read(name).decode())  # type: ignore[return-value]


class Environment:
    """A bare virtual environment, which has not even pip: that of this Python installs into it."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, symlinks=True)
        self._python = str(folder / "bin" / "python")
        self._folder = folder

    def install(self, *requirements: str) -> str:
        # To compile all packages takes longer than to compile the imported ones.
        command = [sys.executable, "-m", "pip", "--python", self._python, "install", "-q", "--no-compile"]
        return self._run(*command, "-c", str(ROOT / "constraints.txt"), *requirements)

    def python(self, code: str) -> str:
        return self._run(self._python, "-I", "-W", "error", "-c", code)

    def command(self, *arguments: str) -> str:
        return self._run(str(self._folder / "bin" / "logitport"), *arguments)

    def _run(self, *command: str) -> str:
        done = subprocess.run(command, cwd=self._folder, capture_output=True, text=True, timeout=_SECONDS, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def test_the_wheel_is_complete(distributions: Distributions) -> None:
    with zipfile.ZipFile(distributions.wheel) as wheel:
        names = {*wheel.namelist()}
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    expected = {
        path.partition("/")[2]
        for path in tracked.split("\0")
        if re.match(r"(?:client|server|builtin_processors|proto|core)/logitport(?:_\w+)?/", path)
    }
    assert {f"{name}/py.typed" for name in PACKAGES} <= expected
    assert {path for path in expected if not path.endswith(".proto")} <= names
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {*PACKAGES}


def test_the_sdist_builds_the_wheel_again(distributions: Distributions, tmp_path: Path) -> None:
    with tarfile.open(distributions.sdist) as sdist:
        top = {name.split("/")[1] for name in sdist.getnames() if "/" in name}
    assert {"CHANGELOG.md", "LICENSE", "README.md", "pyproject.toml", "proto", "client", "server", "core"} <= top
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), str(distributions.sdist)]
    subprocess.run(command, check=True, capture_output=True, timeout=_SECONDS, env={**os.environ, VARIABLE: "1"})
    (again,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(again) as one, zipfile.ZipFile(distributions.wheel) as other:
        assert {info.filename: info.CRC for info in one.infolist()} == {
            info.filename: info.CRC for info in other.infolist()
        }


def test_the_version_is_in_one_place(distributions: Distributions) -> None:
    (version,) = re.findall(r'^version = "(.*?)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert metadata(distributions)["Version"] == version
    assert f"-{version}-" in distributions.wheel.name
    for package in PACKAGES:
        for folder in ROOT.glob(f"*/{package}"):
            for file in folder.rglob("*.py"):
                assert f'"{version}"' not in file.read_text(), file


def test_every_extra_is_tested(distributions: Distributions) -> None:
    tested = {extra for extras in USES for extra in extras.split(",")}
    assert {*metadata(distributions).get_all("Provides-Extra")} == {
        *(*tested, *WITH_TORCH, *RESOLVED, *OF_DEVELOPERS)
    } - {""}


def test_the_sdist_has_the_sources_of_the_core(distributions: Distributions) -> None:
    with tarfile.open(distributions.sdist) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    command = ["git", "ls-files", "-z", "core"]
    tracked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {path for path in tracked.split("\0") if path} <= names
    assert not [name for name in names if name.startswith("core/build/") or name.endswith(".so")]


@pytest.mark.skipif(not can_build(), reason="the compiled core cannot be built here")
def test_an_install_compiles_the_core(distributions: Distributions, tmp_path: Path) -> None:
    environment = Environment(tmp_path / "venv")
    environment.install(str(distributions.sdist))
    environment.python("from logitport.core import compiled; assert compiled.NAME == 'compiled', compiled.describe()")


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"CXX": "/nowhere/c++"}, "at its installation, CXX was '/nowhere/c++', which is no command"),
        ({"CXX": "", "PATH": "/nowhere"}, "at its installation there was no C++ compiler (Debian: g++)"),
    ],
)
def test_an_install_without_a_compiler_is_pure_python(
    distributions: Distributions,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    reason: str,
) -> None:
    environment = Environment(tmp_path / "venv")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    environment.install(str(distributions.sdist))
    described = environment.python("from logitport.core import compiled; print(compiled.describe())")
    assert described == f"pure Python: there is no compiled core: {reason}\n"


@pytest.mark.parametrize("extra", USES)
def test_an_extra_without_torch(distributions: Distributions, tmp_path: Path, extra: str) -> None:
    environment = Environment(tmp_path / "venv")
    environment.install(f"{distributions.wheel}[{extra}]" if extra else str(distributions.wheel))
    environment.python(USES[extra])
    environment.python("import importlib.util; assert importlib.util.find_spec('torch') is None")
    version = environment.python("import logitport; print(logitport.__version__)").strip()
    assert version == metadata(distributions)["Version"]


def test_the_extras_with_torch(distributions: Distributions, tmp_path: Path) -> None:
    """torch comes first and alone: with other packages, pip could choose another build."""
    environment = Environment(tmp_path / "venv")
    environment.install("torch")
    for extra, code in WITH_TORCH.items():
        environment.install(f"{distributions.wheel}[{extra}]")
        environment.python(code)


def test_the_extra_of_the_server(distributions: Distributions, tmp_path: Path) -> None:
    environment = Environment(tmp_path / "venv")
    environment.install(f"{distributions.wheel}[server]")
    assert environment.command("--version").split()[1] == metadata(distributions)["Version"]
    assert "--enable-custom-logit-processor" in environment.command("serve", "--help")
    folder = next((tmp_path / "venv" / "lib").glob("python*")) / "site-packages"
    sizes = {path.name: _size(path) for path in folder.iterdir() if path.name not in ("pip", "setuptools")}
    assert sum(sizes.values()) <= 150e6, sorted(sizes.items(), key=lambda item: -item[1])[:10]


def _size(path: Path) -> int:
    """Size of a file, or of the files of a folder without compiled Python, in bytes."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.suffix != ".pyc"]
    return sum(file.stat().st_size for file in files if file.is_file())


@pytest.mark.parametrize("extra", RESOLVED)
def test_the_requirements_of_an_extra_exist(distributions: Distributions, tmp_path: Path, extra: str) -> None:
    """Only the named packages: theirs take gigabytes."""
    marked = [
        requirement.partition(";")[0].strip()
        for requirement in metadata(distributions).get_all("Requires-Dist")
        if re.search(rf"extra == ['\"]{extra}['\"]", requirement)
    ]
    assert marked
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "pip", "install", "-q", "--dry-run", "--no-deps", "--ignore-installed"]
    command += ["--report", str(report), "-c", str(ROOT / "constraints.txt")]
    subprocess.run([*command, *marked], check=True, capture_output=True, timeout=_SECONDS)
    assert len(json.loads(report.read_text())["install"]) == len(marked)
