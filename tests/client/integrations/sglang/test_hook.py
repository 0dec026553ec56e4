"""SGLang's hook with a real server, and requests that behave like SGLang's."""

from __future__ import annotations

import sys
import threading
import weakref
from array import array
from http import HTTPStatus
from queue import SimpleQueue
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport import Client, LogitportError
from logitport.errors import InvalidArgument, ServerUnavailable
from logitport.integrations.common.ranks import Ranks
from logitport.integrations.sglang.engine_options import unsupported_here
from logitport.integrations.sglang.hook import Hook, _options
from tests.client.integrations.vllm.test_remote_batch import Group
from tests.toy_processors import AddCallCount, RaisesInCall

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.conftest import RunningServer

VOCAB_SIZE = 32
EOS = 1


class Req:
    """The part of SGLang's `Req` that a processor can reach."""

    def __init__(self, prompt: list[int], **attributes: Any) -> None:
        self.rid = "r"
        self.origin_input_ids = self.origin_input_ids_unpadded = array("q", prompt)
        self.output_ids = array("q")
        self.eos_token_ids = {EOS}
        self.inflight_middle_chunks = 0
        self.beam_group = None
        self.to_finish: Any = None
        self.ended = False
        vars(self).update(attributes)

    @property
    def finished_reason(self) -> str | None:
        return "stop" if self.ended else None

    def finished(self) -> bool:
        return self.ended


@pytest.fixture(autouse=True)
def shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of these tests ship classes."""
    monkeypatch.setenv("LOGITPORT_REQUEST_PROCESSORS", "builtin,registered,shipped")


@pytest.fixture(autouse=True)
def finish_abort(monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the only class of SGLang that ends a request."""
    for name in ("sglang", "sglang.srt", "sglang.srt.managers", "sglang.srt.managers.schedule_batch"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    module = sys.modules["sglang.srt.managers.schedule_batch"]
    module.FINISH_ABORT = lambda *why: SimpleNamespace(message=why[0], status=why[1], kind=why[2])
    runtime = ModuleType("sglang.srt.runtime_context")
    numbers = {"speculative_num_draft_tokens": 6}
    runtime.get_context = lambda: SimpleNamespace(config_leaf=lambda name: numbers.get(name, name))
    monkeypatch.setitem(sys.modules, "sglang.srt.runtime_context", runtime)


@pytest.fixture
def hook(client: Client) -> Iterator[Hook]:
    hook = Hook(lambda: client, tuple, Ranks(), "")
    yield hook
    hook._holder.close()


def params_of(req: Req, *chain: Any) -> dict[str, Any]:
    return {"logitport": list(chain), "__req__": weakref.proxy(req)}


def ban(*token_ids: int) -> list[Any]:
    return ["disallowed_tokens", {"token_ids": list(token_ids)}]


def step(hook: Hook, *params: Any) -> torch.Tensor:
    """Run one step; each id's logit is its own number."""
    logits = torch.arange(float(VOCAB_SIZE)).repeat(len(params), 1)
    hook.process(logits, list(params))
    return logits


def sample(logits: torch.Tensor, *reqs: Req) -> list[int]:
    ids = logits.argmax(-1).tolist()
    for req, token_id in zip(reqs, ids, strict=True):
        req.output_ids.append(token_id)
    return ids


def test_a_key_that_the_operator_does_not_permit_ends_its_request_alone(
    hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the plugin no front end has checked it. SGLang's own keys are permitted."""
    monkeypatch.setenv("LOGITPORT_REQUEST_KEYS", "none")
    fine, wrong = Req([2]), Req([3])
    mistyped = {"logitprot": [ban(30)], "__req__": weakref.proxy(wrong)}
    logits = step(hook, {**params_of(fine, ban(31)), "thinking_budget": 9}, mistyped)
    assert logits.argmax(-1).tolist() == [30, EOS]
    assert fine.to_finish is None
    assert wrong.to_finish.status == HTTPStatus.BAD_REQUEST
    assert "write 'logitport'" in wrong.to_finish.message


def test_a_request_shows_its_report(hook: Hook) -> None:
    thinking = {"thinking_budget": 1, "thinking_start_ids": [2], "thinking_end_ids": [3]}
    req, other = Req([2]), Req([5])
    params = params_of(req, ["thinking_budget", thinking])
    for _ in range(2):
        sample(step(hook, params, params_of(other)), req, other)
    assert not vars(other).keys() & {"logitport_handle"}
    hook._batch._discard_session(LogitportError("lost"))
    hook._holder.breaker.record_success()  # without the pause after a failure
    sample(step(hook, params), req)
    report = vars(req)["logitport_handle"].report
    assert [(one.name, one.position, one.values) for one in report.events] == [("budget_hit", 1, {"at": 1})]
    assert report.rows_applied == 3


def test_histories_are_tracked(hook: Hook) -> None:
    """No bigram twice: the denied ids follow from every earlier id."""
    req = Req([5])
    params = params_of(req, ["no_repeat_ngram", {"ngram_size": 2, "window_size": 100}])
    ids = [sample(step(hook, params), req)[0] for _ in range(6)]
    assert ids == [31, 31, 30, 31, 29, 31]
    assert hook._holder.session.logits_memory == "", "chains without readers move no logits"
    req.output_ids = array("q", [31])  # as after a retraction of a request that has input embeddings
    assert sample(step(hook, params), req) == [31]


def test_ended_requests_are_removed(hook: Hook) -> None:
    ended, dropped, running = Req([2]), Req([3]), Req([4])
    step(hook, params_of(ended, ban(31)), params_of(dropped, ban(31)), params_of(running, ban(31)))
    assert len(hook._holder.session) == 3
    ended.ended = True
    del dropped
    step(hook, params_of(running, ban(31)))
    assert len(hook._holder.session) == 1


def test_a_request_out_of_the_batch_keeps_its_state(hook: Hook) -> None:
    retracted, running = Req([2]), Req([4])
    for params in ([retracted, running], [running], [running], [retracted, running]):
        logits = step(hook, *(params_of(req, [AddCallCount.to_str(), {}]) for req in params))
    assert hook._holder.session.logits_memory == "host"
    assert (logits - torch.arange(float(VOCAB_SIZE)))[:, 0].tolist() == [2.0, 4.0]


def test_rows_that_are_not_processed(hook: Hook) -> None:
    """Requests that are in the middle of their prompt, ended, aborted, dropped or unknown are not processed."""
    unprocessed = [Req([2], inflight_middle_chunks=1), Req([2], ended=True), Req([2], to_finish="aborted")]
    gone = params_of(Req([2]), ban(31))
    logits = step(hook, *(params_of(req, ban(31)) for req in unprocessed), gone, None, {"logitport": [ban(31)]})
    assert logits.argmax(-1).tolist() == [31] * 6
    assert hook._holder.session is None


def test_the_default_chain_is_for_requests_that_name_none(client: Client) -> None:
    hook = Hook(lambda: client, lambda: [("disallowed_tokens", {"token_ids": [31]})], Ranks(), "")
    chained, plain, empty = Req([2]), Req([3]), Req([4])
    logits = step(hook, params_of(chained, ban(30)), {"__req__": weakref.proxy(plain)}, params_of(empty))
    assert logits.argmax(-1).tolist() == [31, 30, 31]
    hook._holder.close()


@pytest.mark.parametrize(
    ("chain", "message"),
    [
        ([["nonsense", {}]], "NotFound: no built-in is called 'nonsense'"),
        ([["disallowed_tokens", {"token_ids": [VOCAB_SIZE]}]], "InvalidArgument"),
        (["disallowed_tokens"], "InvalidArgument: logitport[0]"),
        ([["{}", {}]], 'PayloadError: the payload has no "callable"'),
        ([[RaisesInCall.to_str(), {}]], "out of luck"),
        ([["disallowed_tokens", {"token_ids": list(range(VOCAB_SIZE))}]], "deny every id"),
    ],
)
def test_only_the_failed_request_ends(hook: Hook, chain: Any, message: str) -> None:
    fails, fine = Req([2]), Req([3])
    logits = step(hook, params_of(fails, *chain), params_of(fine, ban(31)))
    assert message in fails.to_finish.message
    crashed = "ProcessorFailed" in fails.to_finish.message
    assert fails.to_finish.status is (HTTPStatus.INTERNAL_SERVER_ERROR if crashed else HTTPStatus.BAD_REQUEST)
    assert logits.argmax(-1).tolist() == [EOS, 30]
    assert fine.to_finish is None


def test_beam_search_is_refused(hook: Hook) -> None:
    beams, fine = Req([2], beam_group=object()), Req([3])
    assert step(hook, params_of(beams, ban(31)), params_of(fine, ban(31))).argmax(-1).tolist() == [EOS, 30]
    assert "beam search" in beams.to_finish.message


def test_rows_for_drafts_are_refused(hook: Hook) -> None:
    req, plain = Req([2]), Req([3])
    logits = step(hook, params_of(req, ban(31)), params_of(req, ban(31)), params_of(plain))
    assert logits.argmax(-1).tolist() == [EOS, EOS, 31]
    assert "several rows" in req.to_finish.message
    assert plain.to_finish is None


def test_an_unsupported_engine_refuses_requests(client: Client) -> None:
    hook = Hook(lambda: client, tuple, Ranks(), "--pp-size 2: no")
    chained, plain = Req([2]), Req([3])
    step(hook, params_of(chained, ban(31)), params_of(plain))
    assert "--pp-size 2: no" in chained.to_finish.message
    assert plain.to_finish is None


def test_an_invalid_default_chain_refuses_requests(client: Client) -> None:
    def default() -> Any:
        raise InvalidArgument("LOGITPORT_DEFAULT_PROCESSORS: not JSON")

    req = Req([2])
    step(Hook(lambda: client, default, Ranks(), ""), params_of(req, ban(31)))
    assert "LOGITPORT_DEFAULT_PROCESSORS" in req.to_finish.message


def test_a_session_waits_for_a_lost_service_as_long_as_the_operator_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGITPORT_STEP_TIMEOUT_SECONDS", "200")
    assert _options(torch.zeros(1, VOCAB_SIZE), Req([2]))["reconnect_seconds"] == 200.0


def lose_session(hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the next removal find that the server has gone."""

    def remove(*_: object) -> None:
        raise ServerUnavailable("no server")

    monkeypatch.setattr(hook._holder.session, "remove", remove)


class TestServerGone:
    def test_requests_end_with_503_and_only_the_first_one_waits(self) -> None:
        attempts = []

        def connect() -> Any:
            attempts.append(1)
            raise ServerUnavailable("no server")

        hook = Hook(connect, tuple, Ranks(), "")
        for _ in range(3):
            req = Req([2])
            assert step(hook, params_of(req, ban(31))).argmax() == EOS
            assert req.to_finish.status is HTTPStatus.SERVICE_UNAVAILABLE
            assert "ServerUnavailable: the logitport service is unavailable" in req.to_finish.message
            assert "no server" not in req.to_finish.message  # it may be an address
        assert len(attempts) == 1

    @pytest.mark.slow
    def test_another_server_continues_requests_with_state_from_history(
        self, start_server: Callable[..., RunningServer], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("logitport.integrations.common.environment._RECONNECT_SECONDS", 0.1)
        monkeypatch.setattr("logitport.integrations.common.circuit_breaker._MIN_PAUSE_SECONDS", 0.0)
        first, second = (start_server("--enable-custom-logit-processor") for _ in range(2))
        with Client(first.target) as one, Client(second.target) as two:
            clients = [two, one]
            hook = Hook(clients.pop, tuple, Ranks(), "")
            reads, waits, ends = Req([2]), Req([3]), Req([4])
            bigrams = ["no_repeat_ngram", {"ngram_size": 2, "window_size": 100}]
            for _ in range(2):
                logits = step(hook, params_of(reads, [AddCallCount.to_str(), {}]), params_of(waits, bigrams))
                assert sample(logits, reads, waits) == [31, 31]
            first.stop()
            step(hook, params_of(ends, ban(31)))
            assert ends.to_finish.status is HTTPStatus.SERVICE_UNAVAILABLE
            hook._holder._client = None
            logits = step(hook, params_of(reads, [AddCallCount.to_str(), {}]), params_of(waits, bigrams))
            assert "StateLost" in reads.to_finish.message
            assert logits[1].argmax() == 30
            hook._holder.close()

    def test_a_session_that_is_lost_by_a_removal_ends_the_requests_of_the_step(
        self, hook: Hook, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ends, goes_on, retracted = Req([2]), Req([3]), Req([4])
        reqs = [ends, goes_on, retracted]
        sample(step(hook, *(params_of(req, ban(31)) for req in reqs)), *reqs)
        ends.ended = True
        lose_session(hook, monkeypatch)
        assert step(hook, params_of(goes_on, ban(31))).argmax() == EOS
        assert goes_on.to_finish.status is HTTPStatus.SERVICE_UNAVAILABLE
        goes_on.ended = True

        # A request that comes before the service is there again does not end one that waits.
        new = Req([5])
        step(hook, params_of(new, ban(31)))
        assert new.to_finish.status is HTTPStatus.SERVICE_UNAVAILABLE
        hook._holder.breaker.record_success()  # the pause has passed
        assert step(hook, params_of(retracted, ban(31))).argmax() == 30
        assert retracted.to_finish is None

    def test_a_defect_of_the_hook_ends_requests_not_the_engine(
        self, hook: Hook, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def defect(*arguments: Any) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr("logitport.integrations.sglang.hook.new_ids", defect)
        req = Req([2])
        step(hook, params_of(req, ban(31)))
        assert "LogitportError" in req.to_finish.message
        assert req.to_finish.status is HTTPStatus.INTERNAL_SERVER_ERROR


@pytest.mark.parametrize(
    "chain", [[ban(31)], [[AddCallCount.to_str(), {}]], [["nonsense", {}]], [[RaisesInCall.to_str(), {}]]]
)
def test_one_rank_calls_the_service_and_all_ranks_agree(client: Client, chain: Any) -> None:
    channel: SimpleQueue[Any] = SimpleQueue()
    connects: list[int] = []
    rows: dict[int, torch.Tensor] = {}
    reqs = {rank: Req([2]) for rank in range(2)}

    def run(rank: int) -> None:
        def connect() -> Client:
            connects.append(rank)
            return client

        hook = Hook(connect, tuple, Ranks(Group(rank, channel)), "")
        plain = Req([3])
        for _ in range(3):
            rows[rank] = step(hook, params_of(reqs[rank], *chain), params_of(plain))
        hook._holder.close()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert connects in ([0], [])
    assert torch.equal(rows[0], rows[1])
    assert str(reqs[0].to_finish) == str(reqs[1].to_finish)


ATTRIBUTES = (
    *("inflight_middle_chunks", "to_finish", "beam_group", "finished", "eos_token_ids", "rid", "output_ids"),
    *("origin_input_ids", "origin_input_ids_unpadded"),
)


class OfAnotherVersion(Req):
    """A request of a version of SGLang that lacks an attribute."""

    def __init__(self, missing: str) -> None:
        super().__init__([2])
        self.missing = missing

    def __getattribute__(self, name: str) -> Any:
        attributes = object.__getattribute__(self, "__dict__")
        if name == attributes.get("missing"):
            raise AttributeError(name)
        return object.__getattribute__(self, name)


@pytest.mark.parametrize("refusal", ["", "the options of sglang 9 cannot be read"])
@pytest.mark.parametrize("missing", ATTRIBUTES)
def test_a_request_of_another_version_ends(client: Client, missing: str, refusal: str) -> None:
    hook = Hook(lambda: client, tuple, Ranks(), refusal)
    strange, plain = OfAnotherVersion(missing), OfAnotherVersion(missing)
    logits = step(hook, params_of(strange, ban(31)), params_of(plain))
    assert logits[1].argmax() == 31
    # These are not needed to process a row.
    is_processed = logits[0, 31] == -torch.inf and missing in {"origin_input_ids", "eos_token_ids"}
    assert vars(strange)["to_finish"] is not None or is_processed
    assert vars(plain)["to_finish"] is None
    hook._holder.close()


def test_a_version_that_ends_requests_in_another_way(hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sys.modules["sglang.srt.managers.schedule_batch"], "FINISH_ABORT")
    req = Req([2])
    logits = step(hook, params_of(req, ["no such", {}]))
    assert (logits[0] > -torch.inf).nonzero().flatten().tolist() == [EOS]


def test_options_that_cannot_be_read_are_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sglang.srt.environ", None)
    assert "0.5.23 is known to work" in unsupported_here()
