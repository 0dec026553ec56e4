"""Shipped processors of a principal's process, in workers that the front door forks."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from logitport import EditProcessor, LogitportError, ProcessorFailed
from logitport_server.executors.worker_processes.worker_zygotes import WorkerZygotes
from logitport_server.principal_process.worker_messages import Domain as DomainMessage
from logitport_server.principal_process.worker_messages import ForkWorker, RecordFailure, WorkerForked
from logitport_session.dialects.failures import WorkerLost
from tests.server.lent_workers import CountsTokens, Held, Lender, missing_layers, source_of
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport import EditRequest, RowEdits

    LenderOf = Callable[..., Lender]


class Exits(EditProcessor):
    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        os._exit(7)


@pytest.mark.slow
def test_a_shipped_class_runs_in_a_worker(lender_of: LenderOf) -> None:
    lender = lender_of()
    _, executor = lender.principal("alice")
    held = Held(executor, "alice", CountsTokens)
    assert held.step() == 2.0
    assert (executor.running, lender.service.running) == (1, 1)
    assert (executor.hits, executor.misses) == (0, 1)
    again = Held(executor, "alice", CountsTokens)
    assert (again.step(), executor.hits) == (2.0, 1)
    (report,) = lender.events.run(lender.service.workers())
    assert (report.state, report.processors, report.domain) == ("ready", [held.source.display_name], held.source.domain)
    assert report.memory_bytes == lender.service.resident_bytes() > 1 << 20


def test_workers_end_with_their_zygote() -> None:
    zygotes = WorkerZygotes(without=missing_layers())
    lender = Lender(zygotes, processor_timeout_seconds=300.0, quarantine_after=1)
    try:
        lender.service.ready()
        _, executor = lender.principal("alice")
        held = Held(executor, "alice", CountsTokens)
        process = held.dialect.worker.process(60.0)
        for zygote in zygotes._zygotes.current().values():
            zygote._process.kill()
        wait_until(lambda: not process.alive)
        assert held.step() == 2.0  # waits for the zygote that is launched
        assert lender.service.quarantine.failures == 0
        wait_until(lambda: lender.service.running == 1)
    finally:
        lender.close()
        zygotes.close()


def test_forks_without_a_free_slot_wait_for_the_end_of_a_worker(lender_of: LenderOf) -> None:
    lender = lender_of()
    principal, executor = lender.principal("alice")
    held = Held(executor, "alice", CountsTokens)
    process = held.dialect.worker.process(60.0)
    (python, *_) = lender.service.settings.pythons
    domain = DomainMessage("alice", "", "")
    first, second = (
        principal.link.begin(ForkWorker(worker=number, python=python, domain=domain)) for number in (98, 99)
    )
    for expected in (first, second):
        assert not expected.done()
        process.kill()
        forked = expected.result(60.0)
        assert (type(forked.message), len(forked.descriptors)) == (WorkerForked, 2)
        connection, pidfd = forked.descriptors
        os.close(connection)
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)


def test_quarantines_are_known_at_once_and_lifted(lender_of: LenderOf) -> None:
    lender = lender_of(quarantine_after=1)
    _, alice = lender.principal("alice")
    _, other = lender.principal("alice")
    _, bob = lender.principal("bob")
    source = source_of(Exits, "alice")
    with pytest.raises(WorkerLost, match="its worker ended with status 7"):
        Held(alice, "alice", Exits).step()
    with pytest.raises(ProcessorFailed) as caught:
        alice.load(source)
    assert caught.value.code == ProcessorFailed.QUARANTINED
    assert lender.service.quarantine.failures == 1
    wait_until(lambda: len(other.quarantine))
    assert not len(bob.quarantine)
    for executor in (alice, other):
        executor.quarantine.check(source_of(Exits, "alice", "another tenant").domain, source.key, "Exits")
    lender.service.quarantine.lift(source.key)
    wait_until(lambda: not (len(alice.quarantine) or len(other.quarantine)))
    alice.load(source)


def test_quarantines_for_all_callers(lender_of: LenderOf) -> None:
    lender = lender_of()
    for principal in ("a", "b", "c"):
        domain = source_of(Exits, principal).domain
        lender.service.quarantine.adopt(domain, "digest", "adopted")
    _, executor = lender.principal("late")
    wait_until(lambda: executor.quarantine._reason_now(None, "digest"))
    with pytest.raises(ProcessorFailed, match="it is quarantined for 3 principals, for the last one because: adopted"):
        executor.quarantine.check(source_of(Exits, "late").domain, "digest", "Exits")


def test_slow_calls_are_charged(lender_of: LenderOf) -> None:
    lender = lender_of(quarantine_after=1, processor_timeout_seconds=10.0)
    _, executor = lender.principal("alice")
    domain = source_of(Exits, "alice").domain
    executor.quarantine.record_call(domain, "digest", 4.9)
    for _ in range(2):
        executor.quarantine.check(domain, "digest", "Slow")
        executor.quarantine.record_call(domain, "digest", 6.0)
    with pytest.raises(ProcessorFailed, match="a call took 6 s of the 10 s that it may take"):
        executor.quarantine.check(domain, "digest", "Slow")


def test_the_end_of_a_process_ends_its_workers(lender_of: LenderOf) -> None:
    lender = lender_of(max_workers=1)
    principal, executor = lender.principal("alice")
    held = Held(executor, "alice", CountsTokens)
    process = held.dialect.worker.process(60.0)
    principal.end()
    wait_until(lambda: not process.alive)
    wait_until(lambda: lender.service.running == 0)
    _, bob = lender.principal("bob")
    assert Held(bob, "bob", CountsTokens).step() == 2.0
    with pytest.raises(LogitportError):
        held.step()  # its front door has closed the channel


def test_failures_are_charged_in_trust_domains_of_the_principal(lender_of: LenderOf) -> None:
    lender = lender_of(quarantine_after=1)
    principal, _ = lender.principal("mallory")
    failure = RecordFailure(
        domain=DomainMessage("bob", "t", "d" * 9999), digest="d", reason="r" * 9999, seconds=float("nan")
    )
    principal.link.call(failure)
    ((domain, digest, reason),) = lender.service.quarantine.entries()
    assert domain is not None
    assert (domain.party, len(domain.digest), digest) == (("mallory", "t"), 1024, "d")
    assert len(reason) < 5000
