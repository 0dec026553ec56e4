"""Output of shipped processors reaches the principal of their requests, and no other one."""

from __future__ import annotations

import gc
import logging
import sys
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from logitport import (
    AccessDenied,
    Client,
    CustomLogitProcessor,
    EditProcessor,
    NotFound,
    PayloadError,
    ProcessorFailed,
    Request,
)
from logitport_server.access import new_token

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from logitport import EditRequest, RowEdits
    from tests.conftest import RunningServer

VOCAB = 8
SCOPES = {"alice": ["apply", "register"], "bob": ["apply", "register"], "operator": ["admin"]}
TOKENS = {name: new_token(name, scopes) for name, scopes in SCOPES.items()}


class Prints(EditProcessor):
    def validate_params(self, params: dict[str, Any]) -> None:
        print("checked", params)

    def start(self, request: EditRequest) -> None:
        print("started", request.history.prompt_token_ids.tolist(), file=sys.stderr)

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        print("edited", request.history.token_ids.tolist())
        logging.getLogger("ours").info("logged %d", len(request.history))
        if request.params.get("fails"):
            raise ValueError("as asked")


class PrintsLogits(CustomLogitProcessor):
    def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
        print("saw", [params["secret"] for params in custom_param_list])
        raise ValueError("as asked")


class Leaves:
    """Prints when it is freed."""

    def __init__(self, secret: str, *, cyclic: bool) -> None:
        self.secret = secret
        self.cycle = self if cyclic else None

    def __del__(self) -> None:
        print("left:", self.secret)


class PrintsAtItsEnd(EditProcessor):
    def start(self, request: EditRequest) -> None:
        request.state = Leaves(request.params["secret"], cyclic=request.params["cyclic"])

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        print("began")
        gc.collect()
        print("collected")
        raise ValueError("as asked")


class Floods(EditProcessor):
    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        print("\x1b[2Jbegin", "é" * 1_000_000, "end\x00")


class Lingers(EditProcessor):
    """Prints in a thread, which may run while another request is served."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        thread = threading.Thread(target=print, args=("from a thread",))
        thread.start()
        thread.join()
        print("from the call")


class Stops(EditProcessor):
    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        breakpoint()


@pytest.fixture(scope="module")
def isolating_server(serving: Callable[..., Any]) -> Iterator[RunningServer]:
    with serving("--enable-custom-logit-processor", grants=[grant for _, grant in TOKENS.values()]) as running:
        yield running


@pytest.fixture
def alice(isolating_server: RunningServer) -> Iterator[Client]:
    with Client(isolating_server.target, token=TOKENS["alice"][0]) as client:
        yield client


@pytest.fixture
def bob(isolating_server: RunningServer) -> Iterator[Client]:
    with Client(isolating_server.target, token=TOKENS["bob"][0]) as client:
        yield client


def apply(client: Client, processor: Any, *params: dict[str, Any], prompt: int = 1) -> Any:
    requests = [Request([prompt], processors=[(processor, each)]) for each in params]
    return client.apply(np.zeros((len(params), VOCAB), np.float32), requests, check=False)


def texts(client: Client, processor: Any) -> str:
    return "".join(each.text for each in client.logs(processor))


def test_logs_have_what_every_method_prints(alice: Client) -> None:
    registered = alice.register(Prints, name="alice/prints")
    apply(alice, registered, {"x": 1}, prompt=5)

    outputs = alice.logs("alice/prints")

    assert "".join(each.text for each in outputs) == (
        "checked {'x': 1}\nstarted [5]\nedited [5]\nINFO ours: logged 1\n"
    )
    assert {each.processor for each in outputs} == {registered.digest}
    assert {each.display_name for each in outputs} == {registered.display_name}
    assert [each.time for each in outputs] == sorted(each.time for each in outputs)
    assert alice.logs(registered) == outputs


def test_error_has_the_output_of_its_call(alice: Client) -> None:
    error = apply(alice, Prints, {"fails": True}, prompt=3).failures[0]

    assert isinstance(error, ProcessorFailed)
    assert error.output == "edited [3]\nINFO ours: logged 1\n"
    assert "Output of the processor:\nedited [3]\n" in str(error)


def test_error_has_no_output_of_other_requests(alice: Client) -> None:
    registered = alice.register(PrintsLogits, lift=False)
    errors = apply(alice, registered, {"secret": "one"}, {"secret": "two"}).failures

    assert [error.output for error in errors.values()] == ["", ""]
    assert "saw ['one', 'two']" in texts(alice, registered)
    (alone,) = apply(alice, registered, {"secret": "three"}).failures.values()
    assert alone.output == "saw ['three']\n"


@pytest.mark.parametrize("cyclic", [False, True])
def test_error_has_no_output_of_the_end_of_another_request(alice: Client, *, cyclic: bool) -> None:
    """The worker drops the state of that request in the call that fails."""
    registered = alice.register(PrintsAtItsEnd)
    with alice.session(vocab_size=VOCAB) as session:
        secrets = f"other {cyclic}", "own"
        other, own = (
            session.add(Request([1], processors=[(registered, {"secret": secret, "cyclic": cyclic})]))
            for secret in secrets
        )
        session.remove(other)
        logits = np.zeros((1, VOCAB), np.float32)
        failed = session.step({own: []}).apply(logits, check=False).failures[own]

    assert failed.output == "began\ncollected\n"
    assert f"left: other {cyclic}" in texts(alice, registered)


def test_shared_processor_shows_its_author_no_output_for_others(alice: Client, bob: Client) -> None:
    registered = alice.register(Prints, name="alice/shared", shared=True)
    before = texts(alice, registered)
    apply(bob, registered, {"secret": "of bob"}, prompt=7)

    assert "of bob" in texts(bob, "alice/shared")
    assert "[7]" in texts(bob, registered.digest)
    assert texts(alice, registered) == before
    apply(alice, registered, {"secret": "of alice"})
    assert "of bob" not in texts(alice, registered)
    assert "of alice" not in texts(bob, registered)


def test_no_other_principal_reads_output(alice: Client, bob: Client, isolating_server: RunningServer) -> None:
    class OfAlice(Prints):
        """Another digest than that of the other tests."""

    registered = alice.register(OfAlice)
    apply(alice, registered, {})

    assert texts(alice, registered)
    with pytest.raises(NotFound):
        bob.logs(registered)
    with Client(isolating_server.target, token=TOKENS["operator"][0]) as operator, pytest.raises(AccessDenied):
        operator.logs(registered)


def test_registering_the_same_processor_shows_no_output_of_another_principal(alice: Client, bob: Client) -> None:
    class OfBoth(Prints):
        """The same digest for both."""

    registered = alice.register(OfBoth)
    apply(alice, registered, {"secret": "of alice"})

    assert bob.register(OfBoth).digest == registered.digest
    assert bob.logs(registered) == []


def test_output_is_bounded_and_escaped_when_shown(alice: Client) -> None:
    registered = alice.register(Floods)
    apply(alice, registered, {})

    (printed,) = alice.logs(registered)
    assert len(printed.text) <= 4096
    assert printed.text.startswith("\x1b[2Jbegin é")
    assert printed.text.endswith("end\x00\n")
    assert "bytes left out]" in printed.text
    assert "\\x1b[2Jbegin" in str(printed)
    assert "\x1b" not in str(printed)
    assert "\x00" not in str(printed)


def test_output_of_threads_is_not_kept(alice: Client) -> None:
    registered = alice.register(Lingers)
    apply(alice, registered, {})

    assert texts(alice, registered) == "from the call\n"


def test_breakpoint_says_what_to_do(alice: Client) -> None:
    error = apply(alice, Stops, {}).failures[0]

    assert "logitport_testing.simulate" in error.message


class Raises(EditProcessor):
    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        explain(request.params["why"])


def explain(why: str) -> None:
    raise ValueError(why)  # the line that a traceback shows


class RaisesAtOnce(EditProcessor):
    def __init__(self) -> None:
        explain("in __init__")

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        pass


def test_remote_traceback_shows_source_lines(alice: Client) -> None:
    trace = apply(alice, Raises, {"why": "to see"}).failures[0].remote_traceback

    assert 'explain(request.params["why"])\n' in trace
    assert "raise ValueError(why)  # the line that a traceback shows\n" in trace
    with pytest.raises(PayloadError) as failed, alice.session(vocab_size=VOCAB) as session:
        session.add(Request([1], processors=[(RaisesAtOnce, {})]))
    assert 'explain("in __init__")\n' in failed.value.remote_traceback


def test_another_principal_sees_no_source_lines(alice: Client, bob: Client) -> None:
    registered = alice.register(Raises, shared=True)
    trace = apply(bob, registered, {"why": "to see"}).failures[0].remote_traceback

    assert "in explain" in trace
    assert "raise ValueError" not in trace
    assert "raise ValueError" in apply(alice, registered, {"why": "to see"}).failures[0].remote_traceback
