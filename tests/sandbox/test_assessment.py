"""The decision whether shipped processors are contained: by the attempts that get through, not by the layers."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING

import pytest

from logitport_sandbox import LAYER_NAMES, LAYERS, NotContained, SandboxError, users
from logitport_sandbox.verification import assessment
from logitport_sandbox.verification.assessment import Assessment, assess, contain
from logitport_sandbox.verification.attempts import ATTEMPTS
from logitport_sandbox.verification.probe import ProbeResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

PROCESS, FILES, MOUNT = "Start a process", "Read the host's files", "Mount a file system"
THREADS = "Start threads without end"
NO_BWRAP = {"bubblewrap": "there is no bwrap; install it"}


def results(*through: str) -> tuple[ProbeResult, ...]:
    return tuple(ProbeResult(one.what, one.what not in through, "a reason") for one in ATTEMPTS)


def assessed(
    *through: str, missing: dict[str, str] | None = None, waived: Iterable[str] = (), required: Iterable[str] = ()
) -> Assessment:
    return Assessment(missing or {}, frozenset(waived), frozenset(required), results(*through))


def test_a_missing_layer_that_others_compensate_for_is_a_warning() -> None:
    found = assessed()
    assert (found.refusal(), found.warnings(), found.absent) == (None, [], frozenset())
    found = assessed(missing=NO_BWRAP)
    assert (found.refusal(), found.absent) == (None, {"bubblewrap"})
    (warning,) = found.warnings()
    assert warning.startswith("the sandbox has no layer bubblewrap: there is no bwrap; install it; ")


def test_a_refusal_names_the_attempt_that_gets_through_and_the_remedy() -> None:
    found = assessed(FILES, missing={**NO_BWRAP, "landlock": "not in this kernel", "seccomp": "not here"})
    _, attempt, _, first, second, remedy = (found.refusal() or "").splitlines()
    assert attempt == "  Read the host's files: a reason"
    assert (first, second) == ("  bubblewrap: there is no bwrap; install it", "  landlock: not in this kernel")
    assert "--layers bubblewrap=off --layers landlock=off" in remedy


def test_a_layer_that_is_present_and_stops_nothing_is_a_refusal() -> None:
    assert "please report this" in (assessed(PROCESS).refusal() or "")


def test_a_refusal_for_root_without_users_for_workers_names_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(users, "lacking", lambda: "root lacks CAP_SETUID")
    *_, remedy = (assessed(THREADS).refusal() or "").splitlines()
    assert "root lacks CAP_SETUID" in remedy
    *_, remedy = (assessed(PROCESS).refusal() or "").splitlines()
    assert "report" in remedy


def test_users_of_their_own_stop_threads_without_a_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    for lacking, relied in ((None, True), ("the server does not run as root", False)):
        monkeypatch.setattr(users, "lacking", lambda lacking=lacking: lacking)
        found = assessed(missing={**NO_BWRAP, "namespaces": "not permitted"})
        assert found.relies_on_layers == relied


def test_a_waiver_accepts_what_that_layer_alone_stops() -> None:
    found = assessed(PROCESS, waived={"seccomp"})
    assert found.refusal() is None
    assert found.warnings() == ["without seccomp, these attempts get through: Start a process"]
    refused = assessed(PROCESS, FILES, waived={"seccomp"}).refusal()
    assert refused is not None
    assert FILES in refused
    assert PROCESS not in refused


def test_no_waiver_accepts_what_is_stopped_without_any_layer() -> None:
    assert MOUNT in (assessed(MOUNT, waived=LAYER_NAMES).refusal() or "")


def test_other_layers_do_not_compensate_for_a_required_layer() -> None:
    found = assessed(missing={**NO_BWRAP, "namespaces": "not in this kernel"}, required={"bubblewrap", "seccomp"})
    assert found.refusal() == "this machine lacks required layers:\n  bubblewrap: there is no bwrap; install it"


class Probes:
    """Replaces real probes, and records their calls."""

    def __init__(self) -> None:
        self.calls: list[frozenset[str]] = []
        self.through: tuple[str, ...] = ()
        self.error: SandboxError | None = None

    def __call__(self, python: str, without: frozenset[str]) -> list[ProbeResult]:
        self.calls.append(without)
        if self.error is not None:
            raise self.error
        return list(results(*self.through))


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Probes:
    """Replaced probes, a machine with all layers, and an empty cache folder."""
    for layer in LAYERS:
        monkeypatch.setattr(layer, "missing", lambda: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    counted = Probes()
    monkeypatch.setattr(assessment, "probe", counted)
    return counted


@pytest.fixture
def lack(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Removes a layer from the machine, by its index."""
    return lambda index: monkeypatch.setattr(LAYERS[index], "missing", lambda: "not here")


def test_only_an_accepted_result_is_cached_for_the_same_layers(probes: Probes, lack: Callable[[int], None]) -> None:
    probes.through = (PROCESS,)
    assert assess().refusal() is not None
    probes.through = ()
    first = assess()
    assert first.refusal() is None
    assert assess() == first
    assert len(probes.calls) == 2
    assess(use_cache=False)
    assess(without=["bubblewrap"])
    assert probes.calls[2:] == [frozenset(), {"bubblewrap"}]
    lack(0)
    assert assess().absent == {"bubblewrap"}
    assert not probes.calls[4:]
    lack(4)
    assert assess().absent == {"bubblewrap", "seccomp"}
    assert probes.calls[4:] == [{"bubblewrap", "seccomp"}]
    assert assess(required=["bubblewrap"]).refusal() is not None


def test_a_result_that_relies_on_the_machine_is_not_cached(probes: Probes, lack: Callable[[int], None]) -> None:
    """No layer that is left stops the attempt. It is stopped now, and a setting may change."""
    lack(0)
    lack(3)
    assert assess().refusal() is None
    assert assess().refusal() is None
    assert len(probes.calls) == 2


def test_a_result_accepted_by_a_waiver_is_refused_without_it(probes: Probes, lack: Callable[[int], None]) -> None:
    """Both have the same layers, and therefore the same cached result."""
    lack(4)
    probes.through = (PROCESS,)
    assert assess(without=["seccomp"]).refusal() is None
    assert assess().refusal() is not None


def test_a_failed_probe_lists_the_missing_layers(probes: Probes, lack: Callable[[int], None]) -> None:
    probes.error = SandboxError("no worker could be started: it ended early")
    with pytest.raises(SandboxError, match="ended early") as plain:
        assess()
    assert not isinstance(plain.value, NotContained)
    lack(2)
    with pytest.raises(NotContained, match=r"(?s)ended early.*lacks .*\n  namespaces: not here"):
        assess()


def test_missing_layers_are_logged_once_for_all_interpreters(
    probes: Probes, lack: Callable[[int], None], caplog: pytest.LogCaptureFixture
) -> None:
    lack(0)
    with caplog.at_level(logging.WARNING):
        assert contain([sys.executable, sys.executable], without=["limits"], required=[]) == {"bubblewrap", "limits"}
    assert [record.message.partition(":")[0] for record in caplog.records] == ["the sandbox has no layer bubblewrap"]


def test_an_attempt_that_gets_through_is_an_error(probes: Probes) -> None:
    probes.through = (PROCESS,)
    with pytest.raises(NotContained, match="Start a process"):
        contain([sys.executable], without=[], required=[])
