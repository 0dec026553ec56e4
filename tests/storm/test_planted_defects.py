"""Each check of the storm finds a defect that is planted."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from logitport import LimitExceeded, ProcessorFailed
from logitport.session import PendingStep
from tests.storm.actors.base import Records, Setting
from tests.storm.actors.checked import Running
from tests.storm.actors.engine import Engine
from tests.storm.classes import programs
from tests.storm.judge import Hit, Judge, Load, Record
from tests.storm.planted.__main__ import DEFECTS, ROOT, plant
from tests.storm.world import World
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

# A server that leaves behind what its arguments name: it keeps all that is opened at SIGHUP.
_FAKE = """
import os, signal, socket, sys, tempfile, threading, time
folder, kept = os.environ["TMPDIR"], []
def grow(*_):
    kept.extend(os.pipe() for _ in range(20))
def stop(*_):
    if "file" in WAYS: open(folder + "/left", "w").close()
    if "log" in WAYS: print("2026-01-01 ERROR something", file=sys.stderr, flush=True)
    os._exit(3 if "status" in WAYS else 0)
signal.signal(signal.SIGHUP, grow)
signal.signal(signal.SIGTERM, stop)
if "process" in WAYS and os.fork() == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(60)
if "orphan" in WAYS:  # below a process that is never seen
    if os.fork() == 0:
        os.fork() or time.sleep(60)
        os._exit(0)
    os.wait()
if "socket" in WAYS and os.fork() == 0:
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(folder + "/socket")
    os.unlink(folder + "/socket")
    time.sleep(60)
print("logitport listening on nowhere", flush=True)
while True:
    time.sleep(1)
"""
_SETTINGS: dict[str, Any] = {
    "servers": 1, "principals": ["innocent-0"], "options": {}, "small_store": False, "slow_calls": False,
}  # fmt: skip


def run_engine(seconds: float = 20.0) -> list[Record]:
    """The records of an engine in this process."""
    found: list[Record] = []
    programs()  # capturing one takes seconds
    events = [{"actor": "engine-0", **event, "at": 0.0} for event in Engine.draw(Random(5), seconds, embedded=True)]
    begun = time.monotonic()
    Engine("engine-0", Setting([], {}, 2, 10, begun + 60), Records("engine-0", found.append)).run(events, begun)
    return found


def without_waits(records: list[Record]) -> list[Record]:
    """Leave out the waits: a busy machine makes some of them long."""
    return [each for each in records if each["kind"] != "wait"]


def judged(records: list[Record], *hits: Hit, load: Load | None = None) -> list[str]:
    """What the judge finds: kinds, with the error or the call."""
    found = Judge(list(hits), load or Load(), servers=1).findings(
        [each for each in records if each["kind"] != "counts"]
    )
    return sorted({f"{each['kind']} {each.get('error', each.get('what', ''))}".strip() for each in found})


@pytest.fixture
def after_apply(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Any, Any], None]], None]:
    """Has a function called with the logits and the result of the tenth step."""
    applied = PendingStep.apply
    steps: list[None] = []

    def plant(defect: Callable[[Any, Any], None]) -> None:
        def apply(self: Any, logits: Any, *, check: bool = True) -> Any:
            result = applied(self, logits, check=check)
            steps.append(None)
            if len(steps) == 10:
                defect(logits, result)
            return result

        monkeypatch.setattr(PendingStep, "apply", apply)

    return plant


def test_without_a_defect_sessions_in_this_process_equal_the_reference() -> None:
    records = run_engine()
    assert judged(without_waits(records)) == []
    assert sum(record["counts"].get("rows", 0) for record in records if record["kind"] == "counts") > 100


def test_a_wrong_row(after_apply: Any) -> None:
    def change(logits: Any, result: Any) -> None:
        row = np.asarray(logits)[-1]
        row[3] = 0.5 if np.isneginf(row[3]) else np.nextafter(row[3], np.float32(np.inf))

    after_apply(change)
    assert judged(without_waits(run_engine())) == ["wrong row"]


def test_a_wrong_report(after_apply: Any) -> None:
    after_apply(lambda logits, result: result.rows_applied.update(min_p=99))
    assert judged(without_waits(run_engine())) == ["wrong row"]


def test_a_refusal_of_a_history_that_was_rewound_before_it_arrived() -> None:
    found: list[Record] = []
    engine = Engine("engine-0", Setting([], {}, 2, 10, time.monotonic() + 60), Records("engine-0", found.append))
    engine._opening = {"harmful": False, "transport": "embedded"}
    for count in (2_000_000, 6):
        one = Running([], np.zeros(count, np.int32), 0)
        one.ids = one.ids[:5]
        engine._failed(one, LimitExceeded(f"{count} token ids"))
    assert [record["detail"] for record in found] == ["6 token ids"]


@pytest.mark.parametrize(
    ("lateness", "hit", "findings"), [(0.0, False, 2), (0.5, False, 0), (0.0, True, 0)], ids=["idle", "busy", "broken"]
)
def test_a_quarantine_after_slow_calls(lateness: float, hit: bool, findings: int) -> None:
    text = "processor 12 is quarantined for all callers: it is quarantined for 3 principals"
    records: list[Record] = [
        {"kind": "logged error", "actor": "world", "at": 10.0, "detail": text, "event": {}},
        {
            "kind": "failure", "actor": "engine-0", "at": 11.0, "begun": 10.5, "event": {}, "detail": text,
            "error": "ProcessorFailed", "code": ProcessorFailed.QUARANTINED, "ships": True, "chain": [],
        },
    ]  # fmt: skip
    hits = [Hit("worker stopped", "server-0", 1.0, 2.0)] if hit else []
    assert len(Judge(hits, Load([5.0], [lateness]), servers=1).findings(records)) == findings


def test_a_stall(after_apply: Any) -> None:
    after_apply(lambda logits, result: time.sleep(1.5))
    records = run_engine()
    assert "wait step" in judged(records)
    wait = next(each for each in records if each["kind"] == "wait" and each["seconds"] > 1.5)
    assert judged([wait], load=Load([wait["begun"] + 0.5], [0.2])) == []  # the machine was busy
    assert judged([wait], Hit("server killed", "server-0", wait["begun"] - 1, wait["begun"])) == []
    assert judged([wait], Hit("server killed", "server-0", wait["begun"] - 60, wait["begun"] - 50)) == ["wait step"]


def test_a_failed_request(after_apply: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(logits: Any, result: Any) -> None:
        result.failures.update({next(iter(failing)): ProcessorFailed("planted")})

    failing: list[Any] = []
    sent = PendingStep.__init__

    def noted(self: Any, context: Any, content: Any, *rest: Any) -> None:
        failing[:] = content.handles
        sent(self, context, content, *rest)

    monkeypatch.setattr(PendingStep, "__init__", noted)
    after_apply(fail)
    assert judged(without_waits(run_engine())) == ["failure ProcessorFailed"]


@pytest.mark.parametrize(
    ("error", "fields", "what", "is_found"),
    [
        ("ProcessorFailed", {"ships": True}, "worker killed", False),
        ("ProcessorFailed", {"ships": False}, "worker killed", True),
        ("ProcessorFailed", {"ships": True}, "tokens", True),
        ("StateLost", {"ships": True, "follows": False}, "server killed", False),
        ("StateLost", {"ships": True, "follows": True}, "server killed", True),
        ("LimitExceeded", {"ships": False}, "descriptors", False),
        ("LogitportError", {"ships": True, "harmful": True}, "tokens", True),
        ("ProcessorFailed", {"ships": True, "harmful": True}, "tokens", False),
    ],
)
def test_failures_after_hits(error: str, fields: dict[str, Any], what: str, is_found: bool) -> None:
    record = {"kind": "failure", "error": error, "begun": 10.0, "at": 12.0, "detail": "", **fields}
    assert judged([record], Hit(what, "server-0", 11.0, 11.5)) == ([f"failure {error}"] if is_found else [])


def test_a_broken_process_of_a_principal_excuses_this_principal_only() -> None:
    record = {"kind": "failure", "error": "Reconnected", "begun": 10.0, "at": 12.0, "ships": False, "principal": "anna"}
    hits = {name: Hit("principal killed", "server-0", 11.0, 11.5, name) for name in ("anna", "bert", "")}
    assert {name: judged([record], hit) for name, hit in hits.items()} == {
        "anna": [], "bert": ["failure Reconnected"], "": [],
    }  # fmt: skip


@pytest.mark.parametrize("name", DEFECTS)
def test_earlier_defects_can_be_planted(name: str, tmp_path: Path) -> None:
    """`python -m tests.storm.planted` finds them, which takes long."""
    for file in DEFECTS[name].changes:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    plant(DEFECTS[name], tmp_path)


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A world whose server is fake, with the defects of the parameter."""
    command = tmp_path / "logitport"
    command.write_text(f"#!{sys.executable}\nWAYS = {request.param!r}\n{_FAKE}")
    command.chmod(0o700)
    monkeypatch.setattr("tests.storm.server.COMMAND", str(command))
    monkeypatch.setattr("tests.storm.world.SETTLE_SECONDS", 1.0)
    made = World(_SETTINGS)
    try:
        made.start()
        yield made
    finally:
        made.close()


def kinds(world: World) -> list[str]:
    return [record["kind"] for record in world.found]


@pytest.mark.parametrize(
    ("world", "found"),
    [
        ([], []),
        (["file"], ["left behind"]),
        (["process"], ["left behind", "left behind"]),
        (["socket"], ["left behind", "left behind"]),
        (["orphan"], ["left behind"]),
        (["status"], ["server ended"]),
        (["log"], ["logged error"]),
    ],
    indirect=["world"],
)
def test_what_a_server_leaves_behind(world: World, found: list[str]) -> None:
    world.finish(0.0)
    assert kinds(world) == found


@pytest.mark.parametrize("world", [[]], indirect=True)
def test_a_growing_server(world: World) -> None:
    os.kill(world.servers[0].pid, signal.SIGHUP)
    wait_until(world.servers[0].growth)
    world.finish(0.5)
    assert kinds(world) == ["leak"]


@pytest.mark.parametrize("world", [[]], indirect=True)
def test_a_server_that_ends(world: World) -> None:
    first = world.servers[0].pid
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: world.servers[0].pid != first and kinds(world))
    world.finish(0.0)
    assert kinds(world) == ["server ended"]
    assert [hit.what for hit in world.hits] == ["server killed"]
