"""Installation of the wheel with each extra, without torch where that is not asked for."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.packaging.bare_environment import SECONDS, TEST_SECONDS, Environment, metadata
from tests.packaging.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.packaging.conftest import Distributions

pytestmark = pytest.mark.timeout(TEST_SECONDS)

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
    "server,play": "import logitport_play.web.serving; " + _SIMULATED,
}
WITH_TORCH = {
    "torch": "from logitport import TensorProcessor; from logitport_programs import capture",
    "transformers": "import torch; import logitport.integrations.common.history_batch",  # the hook imports transformers
    "sglang": "import logitport.integrations.sglang",
}
RESOLVED = ("cuda", "ray")
ON_TOP = ("server", "testing")  # installed one after the other
# The Makefile installs them.
OF_DEVELOPERS = ("bench", "browser", "dashboard", "demo", "docs", "fleet-test", "lint", "test")


def test_every_extra_is_tested(distributions: Distributions) -> None:
    tested = {extra for extras in USES for extra in extras.split(",")}
    assert {*metadata(distributions).get_all("Provides-Extra")} == {
        *(*tested, *WITH_TORCH, *ON_TOP, *RESOLVED, *OF_DEVELOPERS)
    } - {""}


@pytest.mark.parametrize("extra", USES)
def test_an_extra_without_torch(distributions: Distributions, tmp_path: Path, extra: str) -> None:
    environment = Environment(tmp_path / "venv")
    environment.install(f"{distributions.wheel}[{extra}]" if extra else str(distributions.wheel))
    environment.python(USES[extra])
    environment.python("import importlib.util; assert importlib.util.find_spec('torch') is None")
    version = environment.python("import logitport; print(logitport.__version__)").strip()
    assert version == metadata(distributions)["Version"]


def test_the_extra_of_the_server(distributions: Distributions, tmp_path: Path) -> None:
    environment = Environment(tmp_path / "venv")
    environment.install(f"{distributions.wheel}[server]")
    environment.python(f"import logitport_server.server, logitport_server.principal_process.preload; {_SIMULATED}")
    assert environment.command("--version").split()[1] == metadata(distributions)["Version"]
    assert "--enable-custom-logit-processor" in environment.command("serve", "--help")
    folder = next((tmp_path / "venv" / "lib").glob("python*")) / "site-packages"
    sizes = {path.name: _size(path) for path in folder.iterdir() if path.name not in ("pip", "setuptools")}
    assert sum(sizes.values()) <= 150e6, sorted(sizes.items(), key=lambda item: -item[1])[:10]
    environment.install(f"{distributions.wheel}[server,testing]")
    environment.python(f"import logitport_testing.laws; {_SIMULATED}")
    environment.python("import importlib.util; assert importlib.util.find_spec('torch') is None")


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
    subprocess.run([*command, *marked], check=True, capture_output=True, timeout=SECONDS)
    assert len(json.loads(report.read_text())["install"]) == len(marked)
