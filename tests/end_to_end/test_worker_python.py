"""A processor shipped from another Python version runs in a worker of that version. Needs `make worker-python`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from logitport import Client, EditProcessor, PayloadError, Request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from logitport import EditRequest, RowEdits
    from tests.conftest import RunningServer

PYTHON = Path(__file__).parents[2] / ".venv-worker" / "bin" / "python"
VOCAB = 32
AUTHOR = """
from logitport import CustomLogitProcessor, EditProcessor

class DenyNext(EditProcessor):
    def start(self, request):
        request.state = [token_id + 1 for token_id in request.history.token_ids.tolist()]

    def advance(self, request, token_id):
        request.state.append(token_id + 1)

    def edit(self, request, edits):
        edits.deny([*request.state, *(i for i in range(20, 22))])

class Reads(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        return [logits for _ in range(1)][0]

print(DenyNext.to_str())
print(Reads.to_str())
"""

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="there is no second Python: make worker-python")


class DenyThree(EditProcessor):
    """A processor shipped from the Python version of the server."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.deny([3 for _ in range(1)])


def run_worker_python(code: str) -> str:
    return subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def version() -> str:
    output = run_worker_python("import sys; print('%d.%d' % sys.version_info[:2])").strip()
    if output == f"{sys.version_info.major}.{sys.version_info.minor}":
        pytest.skip("the second Python is as old as the first")
    return output


@pytest.fixture(scope="module")
def payloads() -> list[str]:
    return run_worker_python(AUTHOR).splitlines()


@pytest.fixture(scope="module")
def client(version: str, serving: Callable[..., AbstractContextManager[RunningServer]]) -> Iterator[Client]:
    with (
        serving("--enable-custom-logit-processor", "--worker-python", f"{version}={PYTHON}") as running,
        Client(running.target) as connected,
    ):
        yield connected


def test_both_pythons_in_one_chain(client: Client, payloads: list[str]) -> None:
    client.register(payloads[0], name="notebook/deny-next")
    with client.session(vocab_size=VOCAB, dtype=torch.float32) as session:
        chain = [("notebook/deny-next", {}), (DenyThree, {}), (payloads[0], {})]
        handle = session.add(Request([5], processors=chain))
        for token_id in (7, 9):
            logits = torch.zeros(1, VOCAB)
            session.step({handle: [token_id]}).apply(logits)
        denied = [at for at in range(VOCAB) if logits[0, at] == float("-inf")]
        assert denied == [3, 6, 8, 10, 20, 21]


def test_a_python_without_torch_gets_no_logits(client: Client, payloads: list[str]) -> None:
    with (
        client.session(vocab_size=VOCAB, dtype=torch.float32) as session,
        pytest.raises(PayloadError, match="reads logits, and the Python that would run it has no torch"),
    ):
        session.add(Request([5], processors=[(payloads[1], {})]))


def test_a_server_without_that_python_refuses(server: RunningServer, version: str, payloads: list[str]) -> None:
    with Client(server.target) as other, pytest.raises(PayloadError, match=version):
        other.register(payloads[0], name="notebook/deny-next")
