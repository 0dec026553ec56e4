"""The report of a request, by the replies to its steps."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pytest

from logitport import Client, EditProcessor, InvalidArgument, Request, RequestsFailed, ServerUnavailable, payload
from logitport.core.row_events import MAX_REQUEST_EVENTS, SKIPPED, RequestEvent, RowEvent
from logitport.report import Report, ReportedProcessor
from logitport.session import report_log
from logitport.session.report_log import ReportLog
from tests.toy_processors import AddOneInPlace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from logitport import EditRequest, RowEdits
    from logitport.session import Handle, Session

VOCAB = 40
BUDGET = ("thinking_budget", {"thinking_budget": 3, "thinking_start_ids": [5], "thinking_end_ids": [6]})


class ReportsLengths(EditProcessor):
    """Reports the length of the output at each row, and refuses some."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        length = len(request.history.output_token_ids)
        for _ in range(request.params.get("times", 1)):
            edits.event("length", is_now=length)
        if length == request.params.get("fails_at"):
            edits.deny([VOCAB])


class ReportsLast(EditProcessor):
    """Reports the last id of the output at each row, or 0."""

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.event("last", id=request.history.last_output or 0)


@pytest.fixture
def session() -> Iterator[Session]:
    """An embedded session for drafts."""
    with (
        Client.embedded() as client,
        client.session(vocab_size=VOCAB, max_draft_tokens=4, max_requests=700) as opened,
    ):
        yield opened


@pytest.fixture(params=["a dict", "another mapping"])
def mapping(request: pytest.FixtureRequest) -> Any:
    """Makes the ids of a step: the compiled core reads dicts only."""
    return dict if request.param == "a dict" else MappingProxyType


def step(session: Session, mapping: Any, new: dict[Handle, list[int]], drafts: dict[Handle, list[int]] | None) -> None:
    rows = sum(1 + len((drafts or {}).get(handle, ())) for handle in new)
    session.step(mapping(new), drafts=drafts).apply(np.zeros((rows, VOCAB), np.float32))


def events(handle: Handle) -> list[tuple[str, int, dict[str, Any]]]:
    return [(one.name, one.position, dict(one.values)) for one in handle.report.events]


def test_a_report_before_the_first_step(session: Session) -> None:
    report = session.add(Request([1], processors=[BUDGET])).report
    assert report == Report((ReportedProcessor("thinking_budget", "", BUDGET[1]),))
    assert report.to_json(with_params=True)["processors"] == [{"name": "thinking_budget", "params": BUDGET[1]}]
    assert report.to_json() == {
        "processors": [{"name": "thinking_budget"}],
        "rows_applied": 0,
        "rows_skipped": 0,
        "skipped": [],
        "error": "",
        "failed_at": None,
        "events": [],
        "events_left_out": 0,
    }


def test_the_edits_of_a_step_may_be_read_before_it_is_applied(session: Session, mapping: Any) -> None:
    handle = session.add(Request([5, 1, 2, 3], processors=[BUDGET]))
    pending = session.step(mapping({handle: []}))
    pending.edits()
    pending.apply(np.zeros((1, VOCAB), np.float32))
    assert events(handle) == [("budget_hit", 0, {"at": 3})]


def test_a_rewind_before_a_step_is_applied_removes_its_events(session: Session, mapping: Any) -> None:
    handle = session.add(Request([5], [1, 2], processors=[BUDGET]))
    pending = session.step(mapping({handle: [3]}))
    session.rewind(handle, 2)
    pending.apply(np.zeros((1, VOCAB), np.float32))
    assert events(handle) == []
    step(session, mapping, {handle: [4]}, None)
    assert events(handle) == []
    step(session, mapping, {handle: [4]}, None)
    assert events(handle) == [("budget_hit", 3, {"at": 3})]


def test_the_event_of_an_accepted_draft_counts_once(session: Session, mapping: Any) -> None:
    handle = session.add(Request([5, 7], processors=[BUDGET]))
    step(session, mapping, {handle: []}, {handle: [8, 9, 6]})
    step(session, mapping, {handle: [8, 9, 6, 7]}, {handle: [1]})
    assert (events(handle), handle.report.rows_applied) == ([("budget_hit", 2, {"at": 3})], 5)
    assert handle.report.events[0].processor == "thinking_budget"


def test_drafts_that_a_program_has_seen_take_back_no_row(session: Session, mapping: Any) -> None:
    handle = session.add(Request([5, 7], processors=[("repetition_penalty", {"repetition_penalty": 2.0})]))
    assert handle.programs
    step(session, mapping, {handle: []}, {handle: [8, 9]})
    assert handle.report.rows_applied == 1
    step(session, mapping, {handle: [8, 6]}, {handle: [1, 2]})
    assert handle.report.rows_applied == 3


def test_events_of_rejected_siblings_use_no_room(client: Client) -> None:
    """A request keeps 64 events. Siblings of the same id have the same events, which count once."""
    drafts = [*range(8, 8 + MAX_REQUEST_EVENTS), 7, 7]
    with client.session(vocab_size=128, max_draft_tokens=len(drafts)) as session:
        handle = session.add(Request([5], processors=[(ReportsLast, {})]))
        tree = {"drafts": {handle: drafts}, "draft_parents": {handle: [-1] * len(drafts)}}
        session.step({handle: []}, **tree).apply(np.zeros((1 + len(drafts), 128), np.float32))
        session.step({handle: [7, 6]}).apply(np.zeros((1, 128), np.float32))
        assert [(one.position, one.values["id"]) for one in handle.report.events] == [(0, 0), (1, 7), (2, 6)]
        assert handle.report.events_left_out == 0


def collect(log: ReportLog, session: Session, handle: Handle) -> None:
    """Follow the report of a request by its changes, as an engine does that collects reports in another process."""
    position, events = session.report_changes.get(handle, (0, ()))
    log.keep_before(position if handle in session.report_changes else VOCAB)
    for event in events:
        log.add(event._replace(draft_offset=0))


@pytest.mark.parametrize("accepted", [[8, 9, 6], [9, 7, 6], [9, 9, 6]])
def test_only_events_of_the_accepted_path_of_a_tree_count(
    session: Session, client: Client, accepted: list[int]
) -> None:
    """Events of the rows after 8, after 9, and after 8, 9: only those of rows that the engine samples from count."""
    tree, parents = [8, 9, 9, 7], [-1, -1, 0, 1]
    for opened, chain in (
        (session, [BUDGET]),
        (client.session(vocab_size=VOCAB, max_draft_tokens=4), [(ReportsLast, {}), BUDGET]),
    ):
        handle = opened.add(Request([5, 7], processors=chain))
        opened.step({handle: []}, drafts={handle: tree}, draft_parents={handle: parents}).apply(
            np.zeros((5, VOCAB), np.float32)
        )
        collect(collected := ReportLog(), opened, handle)
        step(opened, dict, {handle: accepted}, None)
        collect(collected, opened, handle)
        last = [(one.position, one.values["id"]) for one in handle.report.events if one.name == "last"]
        on_path = accepted[:2] in ([8, 9], [9, 7])
        rows = [(0, 0), (1, accepted[0]), *([(2, accepted[1])] if on_path else []), (3, 6)]
        assert last == (rows if len(chain) == 2 else [])
        hit = [one.position for one in handle.report.events if one.name == "budget_hit"]
        assert hit == ([2] if on_path else [])
        assert collected.report(handle.described_chain, 0, VOCAB).events == handle.report.events
        opened.rewind(handle, 3)
        opened.step({handle: [7]}).apply(np.zeros((1, VOCAB), np.float32))
        collect(collected, opened, handle)
        assert collected.report(handle.described_chain, 0, VOCAB).events == handle.report.events
        opened.close()


def test_a_rewind_drops_events_and_they_return_with_their_rows(session: Session, mapping: Any) -> None:
    handle = session.add(Request([5, 7], processors=[BUDGET]))
    for ids in ([], [8], [9], [6]):
        step(session, mapping, {handle: ids}, None)
    assert (events(handle), handle.report.rows_applied) == ([("budget_hit", 2, {"at": 3})], 4)
    session.rewind(handle, 4)
    assert (events(handle), handle.report.rows_applied) == ([], 2)
    step(session, mapping, {handle: []}, None)
    assert (events(handle), handle.report.rows_applied) == ([("budget_hit", 2, {"at": 3})], 3)


def test_ids_without_a_row_are_not_counted(session: Session, mapping: Any) -> None:
    handle = session.add(Request([1], processors=[BUDGET]))
    step(session, mapping, {handle: [2, 3]}, None)
    step(session, mapping, {handle: [4, 7, 8]}, None)
    assert handle.report.rows_applied == 2


def test_a_report_stays_after_the_request_was_removed(session: Session, mapping: Any) -> None:
    handle = session.add(Request([5, 7, 7, 7], processors=[BUDGET]))
    step(session, mapping, {handle: []}, None)
    session.remove(handle)
    assert (events(handle), handle.report.rows_applied) == ([("budget_hit", 0, {"at": 3})], 1)


@pytest.mark.parametrize("after_its_step", [False, True])
def test_another_handle_of_a_request_continues_its_report(session: Session, mapping: Any, after_its_step: bool) -> None:
    before = session.add(Request([5, 7, 7, 7], processors=[BUDGET]))
    step(session, mapping, {before: []}, None)
    session.remove(before)
    handle = session.add(Request([5, 7, 7, 7], [6], processors=[BUDGET]))
    if not after_its_step:
        handle.continue_report(before)
    step(session, mapping, {handle: []}, None)
    if after_its_step:
        handle.continue_report(before)
    assert (events(handle), handle.report.rows_applied) == ([("budget_hit", 0, {"at": 3})], 2)
    handle.reporting().error, handle.reporting().failed_at = "X", 1
    last = session.add(Request([5], [6], processors=[BUDGET]))
    last.continue_report(handle)
    assert (last.report.error, last.report.failed_at, last.report.rows_applied) == ("X", 1, 2)


@pytest.mark.slow
@pytest.mark.parametrize("positions", [MAX_REQUEST_EVENTS + 6, 3 * report_log.MAX_COUNTED_POSITIONS])
def test_events_that_were_left_out_at_positions_that_are_cut_off_are_not_counted(positions: int) -> None:
    log = ReportLog()

    def add(first: int, last: int) -> None:
        for position in range(first, last):
            log.add(RequestEvent(0, "key", position, RowEvent("e", b"{}", 0)))
            log.keep_before(position + 1)  # as the next step does

    def counts(position: int) -> tuple[int, int]:
        report = log.report([], 0, position)
        return len(report.events), report.events_left_out

    add(0, positions)
    assert counts(positions) == (MAX_REQUEST_EVENTS, positions - MAX_REQUEST_EVENTS)
    log.keep_before(positions - 2)
    assert counts(positions - 2) == (MAX_REQUEST_EVENTS, positions - 2 - MAX_REQUEST_EVENTS)
    log.keep_before(10)
    assert counts(10) == (10, 0)
    add(10, positions)
    assert counts(positions) == (MAX_REQUEST_EVENTS, positions - MAX_REQUEST_EVENTS)


def test_the_events_of_two_handles_are_limited_together(session: Session, mapping: Any) -> None:
    first = session.add(Request([5], processors=[BUDGET]))
    second = session.add(Request([5], [2], processors=[BUDGET]))
    for handle, position in ((first, 0), (second, 1)):
        for _ in range(MAX_REQUEST_EVENTS - 1):
            handle.reporting().add(RequestEvent(handle.slot, "thinking_budget", position, RowEvent("e", b"{}", 0)))
    second.continue_report(first)
    session.step({second: [3]})
    report = second.report
    assert (len(report.events), report.events_left_out) == (MAX_REQUEST_EVENTS, MAX_REQUEST_EVENTS - 2)


def test_skipped_rows_of_two_handles(session: Session, mapping: Any) -> None:
    first = session.add(Request([5], processors=[BUDGET]))
    second = session.add(Request([5], [2, 3], processors=[BUDGET]))
    for handle, positions in ((first, (0, 1)), (second, (2, 4))):
        for position in positions:
            handle.reporting().add(RequestEvent(handle.slot, "", position, SKIPPED))
    second.continue_report(first)
    session.step({second: [4, 5]})
    assert (second.report.skipped, second.report.rows_skipped) == (((0, 3), (4, 5)), 4)


def test_rows_that_are_computed_again_by_another_handle_are_not_skipped(session: Session, mapping: Any) -> None:
    first = session.add(Request([5], processors=[BUDGET]))
    for position in (5, 6, 7):
        first.reporting().add(RequestEvent(first.slot, "", position, SKIPPED))
    second = session.add(Request([5], [2], processors=[BUDGET]))
    second.reporting().add(RequestEvent(second.slot, "", 2, SKIPPED))
    second.continue_report(first)
    session.step({second: [3, 4, 5, 6, 7, 8, 9]})
    assert second.report.skipped == ((2, 3),)


def test_a_large_payload_is_read_once_for_reports(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    with client.session(vocab_size=VOCAB) as session:
        handle = session.add(Request([1], processors=[(ReportsLengths, {})]))
        name = handle.report.processors[0].name
        monkeypatch.setattr(payload, "unwrap", lambda _: pytest.fail("read again"))
        assert handle.report.processors[0].name == name


def test_the_events_of_a_shipped_processor(client: Client) -> None:
    with client.session(vocab_size=VOCAB) as session:
        handle = session.add(Request([1], processors=[(ReportsLengths, {"times": 5}), BUDGET]))
        for ids in ([], [2], [3]):
            step(session, dict, {handle: ids}, None)
        report = handle.report
        shipped, builtin = report.processors
        assert (shipped.name, len(shipped.digest), builtin[:2]) == ("ReportsLengths", 64, ("thinking_budget", ""))
        assert [(one.processor, one.position, one.values) for one in report.events] == [
            ("ReportsLengths", length, {"is_now": length}) for length in range(3) for _ in range(4)
        ]
        assert (report.events_left_out, report.rows_applied) == (3, 3)
        for token_id in range(4, 4 + MAX_REQUEST_EVENTS // 4):
            step(session, dict, {handle: [token_id]}, None)
        total = 5 * (3 + MAX_REQUEST_EVENTS // 4)
        kept = len(handle.report.events)
        assert (kept, handle.report.events_left_out) == (MAX_REQUEST_EVENTS, total - MAX_REQUEST_EVENTS)


@pytest.mark.parametrize("on_error", ["abort", "skip"])
def test_a_request_that_fails(client: Client, on_error: Any) -> None:
    with client.session(vocab_size=VOCAB) as session:
        handle = session.add(Request([1], processors=[(ReportsLengths, {"fails_at": 1})], on_error=on_error))
        other = session.add(Request([1], processors=[(ReportsLengths, {})]))
        step(session, dict, {handle: [], other: []}, None)
        if on_error == "abort":
            with pytest.raises(RequestsFailed):
                step(session, dict, {handle: [2], other: [2]}, None)
            assert (handle.report.error, handle.report.failed_at) == (InvalidArgument.__name__, 1)
            assert handle.report.skipped == ()
        else:
            step(session, dict, {handle: [2], other: [2]}, None)
            assert (handle.report.error, handle.report.failed_at) == ("", None)
            assert (handle.report.skipped, handle.report.rows_skipped) == (((1, 2),), 1)
        assert (events(handle), handle.report.rows_applied) == ([("length", 0, {"is_now": 0})], 1)
        assert (len(events(other)), other.report.rows_applied, other.report.error) == (2, 2, "")


def fails_at(*lengths: int) -> Any:
    class FailsAt(EditProcessor):
        def edit(self, request: EditRequest, edits: RowEdits) -> None:
            if len(request.history.output_token_ids) in lengths:
                raise ValueError("planted")

    return FailsAt


def test_skipped_rows_are_ranges_of_the_output(client: Client) -> None:
    """A step fails whole, and those of its rows count that an id was sampled from."""
    with client.session(vocab_size=VOCAB, max_draft_tokens=4) as session:
        handle = session.add(Request([1], processors=[(fails_at(1, 2, 5, 8), {})], on_error="skip"))
        collected = ReportLog()
        steps: list[tuple[list[int], list[int]]] = [
            ([], []),  # position 0 is applied
            ([2], []),
            ([3], [4, 6, 7]),  # positions 2 to 5, from which two drafts are accepted
            ([4, 6, 9], []),  # position 5 again
            ([2], [3]),
        ]
        for new, drafts in steps:
            step(session, dict, {handle: new}, {handle: drafts})
            collect(collected, session, handle)
            position = len(handle.history.output_token_ids)
            assert collected.report(handle.described_chain, 0, position).skipped == handle.report.skipped
        assert (handle.report.skipped, handle.report.rows_applied) == (((1, 6),), 2)
        assert len(orjson.dumps(handle.report.to_json()["skipped"])) <= 8 * 7
        session.rewind(handle, 1 + 3)
        assert handle.report.skipped == ((1, 3),)
        step(session, dict, {handle: []}, None)
        collect(collected, session, handle)
        assert collected.report(handle.described_chain, 0, VOCAB).skipped == handle.report.skipped == ((1, 3),)


def test_skipped_rows_of_a_tree_count_once(client: Client) -> None:
    with client.session(vocab_size=VOCAB, max_draft_tokens=4) as session:
        handle = session.add(Request([1], processors=[(fails_at(0), {})], on_error="skip"))
        tree = {"drafts": {handle: [8, 9, 7]}, "draft_parents": {handle: [-1, -1, 1]}}
        session.step({handle: []}, **tree).apply(np.zeros((4, VOCAB), np.float32))
        assert handle.report.skipped == ((0, 1),)
        step(session, dict, {handle: [9, 7, 5]}, None)
        assert (handle.report.skipped, handle.report.rows_applied) == (((0, 3),), 1)


@pytest.mark.parametrize("pattern", [range(0, 3000, 2), range(3000), range(2000, 2001)])
def test_the_record_of_an_id_takes_at_most_eight_bytes(pattern: range) -> None:
    log = ReportLog()
    for position in pattern:
        log.add(RequestEvent(0, "", position, SKIPPED))
        log.keep_before(position + 1)
    report = log.report([], 0, 3000)
    assert [one for begin, end in report.skipped for one in range(begin, end)] == list(pattern)
    assert len(orjson.dumps(report.to_json()["skipped"])) <= 8 * 3000


def test_a_reconnect_repeats_no_event(client: Client) -> None:
    with client.session(vocab_size=VOCAB, reconnect_seconds=60.0) as session:
        handle = session.add(Request([1], processors=[(ReportsLengths, {})]))
        step(session, dict, {handle: []}, None)
        for token_id in (2, 3):
            session._channel.lose(ServerUnavailable("lost"))
            step(session, dict, {handle: [token_id]}, None)
        assert session.reconnects == 2
        assert events(handle) == [("length", length, {"is_now": length}) for length in range(3)]
        assert handle.report.rows_applied == 3


def test_a_chain_that_reads_logits(client: Client) -> None:
    chain = [(ReportsLengths, {}), (AddOneInPlace, {})]
    with client.session(vocab_size=VOCAB, max_draft_tokens=2) as session:
        handle = session.add(Request([1], processors=chain))
        step(session, dict, {handle: []}, {handle: [2, 3]})
        step(session, dict, {handle: [2, 4]}, None)
        assert events(handle) == [("length", length, {"is_now": length}) for length in range(3)]
        assert handle.report.rows_applied == 3
