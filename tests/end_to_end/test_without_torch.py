"""Built-ins and programs run without torch, with the same bits as with it. Classes that read logits are refused."""

from __future__ import annotations

import json
import re
import subprocess
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest

from logitport import Client, EditProcessor, PayloadError, Request
from logitport_builtins import BUILTIN_PROGRAMS
from tests.conftest import COMMAND, environment
from tests.hidden_torch import run_python, without_torch
from tests.play.conftest import Client as PageClient
from tests.toy_processors import AddOne

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tests.conftest import RunningServer

VOCAB, STEPS = 1500, 4
PARAMS: dict[str, dict[str, Any]] = {
    "epsilon": {"epsilon_cutoff": 3e-4},
    "eta": {"eta_cutoff": 3e-4},
    "min_p": {"min_p": 0.05},
    "repetition_penalty": {"repetition_penalty": 1.3},
    "temperature": {"temperature": 0.7},
    "top_k": {"top_k": 40},
    "top_p": {"top_p": 0.9},
    "typical_p": {"typical_p": 0.9},
}
EDITS: list[tuple[str, dict[str, Any]]] = [
    ("no_repeat_ngram", {"ngram_size": 2}),
    ("green_list", {"bias": 1.5}),
    ("logit_bias", {"logit_bias": {"3": 1.25, "7": -0.5}}),
]
CHAINS = [*([*EDITS, (name, PARAMS[name])] for name in BUILTIN_PROGRAMS), EDITS]
# Prints the rows and the ids of each chain in steps of the author's tools, and whether torch was imported.
SIMULATED = f"""
import json, sys
import numpy as np
from logitport import Request
from logitport_testing import StoryModel, simulate
from logitport_testing.runner import RowStep, load_backend
found, model = [], StoryModel()
for chain in json.loads({json.dumps(CHAINS)!r}):
    with load_backend().open_runner() as runner:
        batch, random = runner.open({VOCAB}), np.random.default_rng(2)
        for slot in range(2):
            batch.add(slot, Request([4, slot], processors=chain))
        for step in range({STEPS}):
            rows = [RowStep(slot, 2 + step - (step > 0), [7] * (step > 0)) for slot in range(2)]
            logits = random.standard_normal((2, {VOCAB})).astype(np.float32)
            found.append([row.logits.tobytes().hex() for row in batch.step(rows, logits)])
    found.append(list(simulate(chain, model, model.encode("Once upon"), steps={STEPS}, seed=3).output_token_ids))
print(json.dumps([found, "torch" in sys.modules]))
"""
# Prints the modules that cannot be imported.
IMPORTED = """
import importlib, json, pkgutil
from logitport.system.installation import OUR_PACKAGES
failed = []
for package in (*OUR_PACKAGES, "logitport_play"):
    for found in pkgutil.walk_packages(importlib.import_module(package).__path__, package + ".", lambda name: None):
        if "__main__" not in found.name and ".stubs." not in found.name:
            try:
                importlib.import_module(found.name)
            except ImportError:
                failed.append(found.name)
print(json.dumps(failed))
"""
# Modules of classes that read logits, of torch's tensors and of GPUs, by the begin of their names.
NEED_TORCH = (
    "logitport.integrations.transformers.",
    "logitport.integrations.vllm.",
    "logitport.ops.apply_edits.native",
    "logitport.ops.apply_edits.triton",
    "logitport.session.logits.device_memory",
    "logitport.system.cuda_ipc",
    "logitport.training",
    "logitport_programs.capturing",
    "logitport_programs.lifting",
    "logitport_programs.runtime.",
    "logitport_server.worker.open_gpu",
    "logitport_session.dialects.dynamo",
    "logitport_session.dialects.snapshot",
    "logitport_session.dialects.transformers.",
    "logitport_session.dialects.vllm.",
)
INSTALL = "pip install '.[server,torch]'"


class DenyOne(EditProcessor):
    def edit(self, request, edits):
        edits.deny([5])


@pytest.fixture(scope="module")
def variables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return without_torch(tmp_path_factory.mktemp("hidden"))


@pytest.fixture(scope="module")
def hidden(
    serving: Callable[..., AbstractContextManager[RunningServer]], variables: dict[str, str]
) -> Iterator[Client]:
    """A client of a server without torch that accepts shipped classes."""
    with (
        serving("--enable-custom-logit-processor", "--device", "auto", variables=variables) as server,
        Client(server.target) as client,
    ):
        yield client


def run(client: Client, dtype: str, transport: Literal["grpc", "local"]) -> list[np.ndarray]:
    """The logits of some steps, with all chains in one batch, where all programs run on the server."""
    random, found = np.random.default_rng(5), []
    with client.session(vocab_size=VOCAB, dtype=dtype, transport=transport, programs="off") as session:
        prompts = random.integers(VOCAB, size=(len(CHAINS), 9)).tolist()
        handles = [
            session.add(Request(prompt, processors=chain)) for prompt, chain in zip(prompts, CHAINS, strict=True)
        ]
        new_ids: list[list[int]] = [[] for _ in handles]
        for _ in range(STEPS):
            logits = (random.standard_normal((len(CHAINS), VOCAB)) * 4).astype(dtype)
            session.step(dict(zip(handles, new_ids, strict=True))).apply(logits)
            found.append(logits)
            new_ids = [[int(row.argmax())] for row in logits]
    return found


@pytest.mark.parametrize("transport", ["local", "grpc"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_server_computes_the_same_bits(
    client: Client, hidden: Client, dtype: str, transport: Literal["grpc", "local"]
) -> None:
    for with_torch, without in zip(run(client, dtype, transport), run(hidden, dtype, transport), strict=True):
        np.testing.assert_array_equal(without.view(np.uint8), with_torch.view(np.uint8))


def test_rows_that_fail_are_restored(hidden: Client) -> None:
    chain = [("temperature", {"temperature": 0.5})]
    with hidden.session(vocab_size=VOCAB, programs="off") as session:
        handles = [session.add(Request([1], processors=chain, on_error="skip")) for _ in range(2)]
        logits = np.full((2, VOCAB), 3.0, np.float32)
        logits[1, 4] = np.nan
        before = logits.copy()
        result = session.step({handle: [] for handle in handles}).apply(logits)
        assert (list(result.failures), list(result.skipped)) == ([], [handles[1]])
        np.testing.assert_array_equal(logits[0], before[0] * 2)
        np.testing.assert_array_equal(logits[1], before[1])


def test_bfloat16_is_processed_with_ml_dtypes(client: Client, hidden: Client) -> None:
    import ml_dtypes  # noqa: F401 - registers the dtype

    for with_torch, without in zip(run(client, "bfloat16", "grpc"), run(hidden, "bfloat16", "grpc"), strict=True):
        np.testing.assert_array_equal(without.view(np.uint8), with_torch.view(np.uint8))


def test_a_class_that_reads_logits_is_refused(hidden: Client) -> None:
    with hidden.session(vocab_size=VOCAB) as session, pytest.raises(PayloadError, match="no torch") as caught:
        session.add(Request([1], processors=[(AddOne, {})]))
    assert INSTALL in str(caught.value)


def test_a_class_that_reads_no_logits_runs(hidden: Client) -> None:
    with hidden.session(vocab_size=VOCAB) as session:
        handle = session.add(Request([1], processors=[(DenyOne, {})]))
        logits = np.zeros((1, VOCAB), np.float32)
        session.step({handle: []}).apply(logits)
    assert np.flatnonzero(np.isneginf(logits)).tolist() == [5]


def test_all_other_modules_are_imported(variables: dict[str, str]) -> None:
    failed = json.loads(run_python(IMPORTED, environment() | variables))
    assert [name for name in failed if not name.startswith(NEED_TORCH)] == []
    assert "logitport_session.dialects.snapshot" in failed, "torch is not hidden"


def test_the_tools_of_authors_compute_the_same_bits(variables: dict[str, str]) -> None:
    with_torch, _ = json.loads(run_python(SIMULATED, environment()))
    without, imported = json.loads(run_python(SIMULATED, environment() | variables))
    assert len(without) == (STEPS + 1) * len(CHAINS)
    assert without == with_torch
    assert not imported


def command(variables: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMMAND, *arguments],
        env=environment() | variables,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def test_a_check_without_torch(variables: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "authored.py"
    file.write_text(
        "from logitport import CustomLogitProcessor, EditProcessor, TensorProcessor\n"
        "class Denies(EditProcessor):\n"
        "    def edit(self, request, edits):\n"
        "        edits.deny([1])\n"
        "class Called(CustomLogitProcessor):\n"
        "    def __call__(self, logits, custom_param_list=None):\n"
        "        return logits\n"
        "class Computes(TensorProcessor):\n"
        "    def process(self, logits, params, history):\n"
        "        return logits\n"
    )
    kept = command(variables, "check", f"{file}:Denies", "--law", "start")
    assert (kept.returncode, kept.stderr) == (0, "")
    for name in ("Called", "Computes"):
        refused = command(variables, "check", f"{file}:{name}", "--law", "start")
        assert refused.returncode == 2
        assert "torch" in refused.stderr
        assert "pip install" in refused.stderr
        assert "Traceback" not in refused.stderr


def test_the_machine_is_described(variables: dict[str, str]) -> None:
    printed = command(variables, "--version").stdout
    assert re.search("^torch ", printed, re.MULTILINE)
    report = command(variables, "doctor")
    assert "not installed" in report.stdout
    assert "Traceback" not in report.stderr


def test_a_page_without_torch(variables: dict[str, str]) -> None:
    process = subprocess.Popen(
        [COMMAND, "play", "--no-browser"], env=environment() | variables, stdout=subprocess.PIPE, text=True
    )
    with process:
        try:
            assert process.stdout is not None
            page = PageClient(process.stdout.readline().split()[-1])
            chain = [{"processor": name, "params": params} for name, params in CHAINS[-2]]
            assert page.run(chain=chain, steps=3)["steps"] == 3
        finally:
            process.terminate()
