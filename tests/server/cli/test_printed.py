"""Output of each command for a real server."""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport import Client, CustomLogitProcessor, ProcessorRef, Request, RequestsFailed
from logitport.admin import ServerStatus, SessionInfo
from logitport_server.access.token_file import new_token
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.conftest import RunningServer

VOCAB = 32
# A worker that is idle ends soon.
WORKERS = ((r"\d+ +idle .*\n", ""), (r"(WORKER .*\n)\d+ +(busy|ready)", r"\1PID STATE"))
AUTHOR, AUTHOR_LINE = new_token("team", ["apply", "register"])
OPERATOR, OPERATOR_LINE = new_token("operator", ["admin"])
HOSTILE = "\x1b]0;owned\x07\x9b31m\u202eenigne\n" + "漢" * 300
SOURCE = """
from logitport import CustomLogitProcessor
from helper import BANNED


class BanFrench(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        logits[:, BANNED] = float("-inf")
        return logits


def no_processor():
    pass
"""


class Ban(CustomLogitProcessor):
    def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
        time.sleep(0.005)  # longer than the built-in beside it, also on a busy machine
        return logits


class Exits(CustomLogitProcessor):
    def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
        os._exit(3)


PRINTS = """
from logitport import CustomLogitProcessor

print("imported")

class Halves(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        print("called")
        return logits * 0.5
"""


class Shown:
    """A server with a registered, a shared and a quarantined processor, and two sessions.

    Attributes:
        target: its address.
        step: makes a step in the first session.
    """

    def __init__(self, target: str, client: Client) -> None:
        self.target = target
        client.register(Ban, name="team/ban:v2", shared=True)
        client.register(Ban, name="team/ban", shared=True)
        client.register(Exits, name="team/exits")
        with pytest.raises(RequestsFailed):
            client.apply(torch.zeros(1, VOCAB), [Request(prompt_token_ids=[1], processors=[("team/exits", {})])])
        self._session = client.session(vocab_size=VOCAB, transport="local", engine="toy", model_name="tiny")
        self._hostile = client.session(vocab_size=VOCAB, transport="grpc", engine=HOSTILE, model_name=HOSTILE)
        chain: Any = [("team/ban", {}), ("disallowed_tokens", {"token_ids": [1]})]
        self._handle = self._session.add(Request(prompt_token_ids=[1], processors=chain))
        for _ in range(3):
            self.step()

    def step(self) -> None:
        self._session.step({self._handle: []}).apply(torch.zeros(1, VOCAB))


@pytest.fixture(scope="module")
def shown(serving: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    path = tmp_path_factory.mktemp("access") / "tokens"
    path.write_text(f"{AUTHOR_LINE.line}\n{OPERATOR_LINE.line}\n")
    options = ("--tokens", str(path), "--enable-custom-logit-processor", "--quarantine-after", "1")
    with serving(*options) as running, Client(running.target, token=AUTHOR) as client:
        yield Shown(running.target, client)


@pytest.fixture(autouse=True)
def as_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGITPORT_TOKEN", OPERATOR)


def json_of(ended: Any) -> Any:
    assert ended.err == ""
    assert ended.status == 0
    assert ended.out.isascii()
    return json.loads(ended.out)


def test_processors_list(shown: Shown, logitport: Any, is_stored: Any) -> None:
    everything = logitport("processors", "list", shown.target)
    registered = logitport("processors", "list", shown.target, "--registered")
    assert everything.status == registered.status == 0
    first = [line.split()[0] for line in everything.out.splitlines()]
    assert first[0] == "NAME"
    assert {"min_p", "disallowed_tokens", "team/ban,team/ban:v2"} <= {*first}
    is_stored("processors-list", registered.out)
    is_stored("processors-list-wide", logitport("processors", "list", shown.target, "--registered", "--wide").out)


def test_processors_list_of_several_servers(shown: Shown, logitport: Any, is_stored: Any) -> None:
    ended = logitport("processors", "list", f"{shown.target},127.0.0.1:1", "--registered")
    assert ended.status == 1
    is_stored("processors-list-several", ended.out)
    assert ended.err.startswith("logitport: no connection to 127.0.0.1:1")
    assert ended.err.count("\n") == 1


def test_processors_as_json(shown: Shown, logitport: Any) -> None:
    listed = json_of(logitport("processors", "list", shown.target, "--json"))
    assert {*listed[0]} == {"server", *(field.name for field in fields(ProcessorRef))}
    ban = listed[-2]
    assert (ban["server"], ban["names"], ban["owner"]) == (shown.target, ["team/ban", "team/ban:v2"], "team")
    assert json_of(logitport("processors", "get", shown.target, "team/ban", "--json")) == [ban]


def test_processors_get(shown: Shown, logitport: Any, is_stored: Any) -> None:
    ended = logitport("processors", "get", shown.target, "team/exits")
    assert ended.status == 0
    is_stored("processors-get", ended.out)
    is_stored("processors-get-installed", logitport("processors", "get", shown.target, "min_p").out)
    unknown = logitport("processors", "get", shown.target, "team/unknown")
    assert (unknown.status, unknown.out) == (1, "")
    assert unknown.err.startswith("logitport: no registered name or digest is 'team/unknown'")


def test_processors_register_and_delete(
    shown: Shown, logitport: Any, is_stored: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGITPORT_TOKEN", AUTHOR)
    (tmp_path / "helper.py").write_text("BANNED = [3, 5]\n")
    (tmp_path / "bans.py").write_text(SOURCE)
    source = f"{tmp_path}/bans.py:BanFrench"
    ended = logitport("processors", "register", shown.target, source, "--name", "team/french", "--shared")
    assert ended.err == ""
    is_stored("processors-register", ended.out)
    with Client(shown.target) as client:
        result = client.apply(torch.zeros(1, VOCAB), [Request(prompt_token_ids=[1], processors=[("team/french", {})])])
        assert torch.isinf(result.logits).nonzero()[:, 1].tolist() == [3, 5]
        assert client.processor("team/french").shared
    deleted = logitport("processors", "delete", f"{shown.target},{shown.target}", "team/french")
    assert deleted.status == 0
    is_stored("processors-delete", deleted.out)
    again = logitport("processors", "delete", shown.target, "team/french")
    assert again.status == 1
    assert "no registered name or digest is 'team/french'" in again.err
    (digest,) = [
        one["digest"]
        for one in json_of(logitport("processors", "list", shown.target, "--json"))
        if one["class_name"] == "BanFrench"
    ]
    assert json_of(logitport("processors", "delete", shown.target, digest, "--json")) == [
        {"server": shown.target, "names": []}
    ]


def test_code_that_prints_leaves_the_output_as_it_is(
    shown: Shown, logitport: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGITPORT_TOKEN", AUTHOR)
    monkeypatch.setattr("logitport.shipping.LIFTS", True)  # tracing calls it
    (tmp_path / "prints.py").write_text(PRINTS)
    ended = logitport("processors", "register", shown.target, f"{tmp_path}/prints.py:Halves", "--json")
    (described,) = json.loads(ended.out)
    assert described["class_name"] == "Halves"
    assert {*ended.err.splitlines()} == {"imported", "called"}


def test_a_payload_is_registered(shown: Shown, logitport: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGITPORT_TOKEN", AUTHOR)
    (tmp_path / "payload.json").write_text(Exits.to_str())
    (described,) = json_of(
        logitport("processors", "register", shown.target, tmp_path / "payload.json", "--name", "team/p", "--json")
    )
    assert described["names"] == ["team/exits", "team/p"]
    taken = tmp_path / "taken.json"
    taken.write_text(Ban.to_str())
    arguments = ("processors", "register", shown.target, taken, "--name", "team/p")
    ended = logitport(*arguments)
    assert (ended.status, ended.out) == (1, "")
    assert "'team/p' is bound to" in ended.err
    assert logitport(*arguments, "--replace", "--shared").status == 0
    assert logitport("processors", "delete", shown.target, "team/p").status == 0


def test_sessions_list(shown: Shown, logitport: Any, is_stored: Any) -> None:
    ended = logitport("sessions", "list", shown.target)
    assert (ended.status, ended.err) == (0, "")
    is_stored("sessions-list", ended.out, (r"(local .*?open +\d+ +)\d+", r"\1STEPS"))
    wide = logitport("sessions", "list", f"{shown.target},{shown.target}", "--wide").out
    is_stored("sessions-list-wide", wide, (r"(local .*?open +\d+ +)\d+", r"\1STEPS"))
    listed = json_of(logitport("sessions", "list", shown.target, "--json"))
    assert {*listed[0]} == {"server", *(field.name for field in fields(SessionInfo))}
    assert listed[1]["engine"] == HOSTILE[:256]


def test_status(shown: Shown, logitport: Any, is_stored: Any) -> None:
    volatile = [
        (r"(steps +)\d+", r"\1STEPS"),
        (r"\d+ unpickled, \d+", "N unpickled, N"),
        (r"\d+ of 1024 registered", "N of 1024 registered"),
        (r"(workers +)\d+", r"\1N"),
        *WORKERS,
    ]
    times = (r"((?:Ban|Exits) \(.*?\)|disallowed_tokens) +\d+ +\d+ +\S+ +\S+ +\S+", r"\1 STEPS ROWS MEAN P50 P99")
    ended = logitport("status", shown.target)
    assert (ended.status, ended.err) == (0, "")
    is_stored("status", ended.out, *volatile)
    is_stored("status-wide", logitport("status", shown.target, "--wide").out, *volatile, times)
    (described,) = json_of(logitport("status", shown.target, "--json"))
    assert {*described} == {"server", *(field.name for field in fields(ServerStatus))}
    several = logitport("status", f"{shown.target},127.0.0.1:1", "--json")
    assert several.status == 1
    assert [(one["server"], "error" in one) for one in json.loads(several.out)] == [
        (shown.target, False),
        ("127.0.0.1:1", True),
    ]


def test_top(shown: Shown, logitport: Any, is_stored: Any) -> None:
    stop = threading.Event()

    def steps() -> None:
        while not stop.is_set():
            shown.step()
            time.sleep(0.01)

    thread = threading.Thread(target=steps)
    thread.start()
    try:
        target = f"{shown.target},127.0.0.1:1"
        ended = logitport("top", target, "--interval", "500ms", "--once")
        described = logitport("top", target, "--interval", "1s", "--json")
    finally:
        stop.set()
        thread.join()
    assert ended.status == described.status == 1
    is_stored("top", ended.out, (r"\b\d+\.\d\b(?!%)", "RATE"), (r"\b\d/64", "N/64"), *WORKERS)
    first, lost = json.loads(described.out)["servers"]
    assert first["state"] == "serving"
    assert first["steps_per_second"] > 0
    assert (lost["state"], lost["steps_per_second"]) == ("unreachable", None)
    by_name = {one["processor"]: one for one in json.loads(described.out)["processors"]}
    assert by_name["disallowed_tokens"]["steps_per_second"] > 0
    assert 0 < by_name["disallowed_tokens"]["p50_seconds"] <= by_name["disallowed_tokens"]["p99_seconds"]


def test_unquarantine_and_drain(start_server: Callable[..., RunningServer], logitport: Any, is_stored: Any) -> None:
    server = start_server("--enable-custom-logit-processor", "--quarantine-after", "1")
    with Client(server.target) as client:
        client.register(Exits, name="team/exits")
        with pytest.raises(RequestsFailed):
            client.apply(torch.zeros(1, VOCAB), [Request(prompt_token_ids=[1], processors=[("team/exits", {})])])
        assert client.processor("team/exits").quarantined
        is_stored("unquarantine", logitport("processors", "unquarantine", server.target, "team/exits").out)
        is_stored("unquarantine-again", logitport("processors", "unquarantine", server.target, "team/exits").out)
        assert not client.processor("team/exits").quarantined
        is_stored("drain", logitport("drain", server.target).out)
    wait_until(lambda: "draining" in logitport("status", server.target).out)


@pytest.mark.parametrize("command", [("status",), ("sessions", "list"), ("top", "--once")])
@pytest.mark.parametrize(
    ("token", "error"), [(AUTHOR, "needs the scope 'admin'"), ("wrong", "token")], ids=["author", "unknown"]
)
def test_a_wrong_token(
    shown: Shown, logitport: Any, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], token: str, error: str
) -> None:
    monkeypatch.setenv("LOGITPORT_TOKEN", token)
    ended = logitport(*command, shown.target)
    assert (ended.status, ended.out, ended.err.count("\n")) == (1, "", 1)
    assert error in ended.err
