"""Which checks of parameters run again, and how many acceptances are remembered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from logitport import EditProcessor, InvalidArgument
from logitport_server.executors.calls.domain_workers import ValidatedParams

if TYPE_CHECKING:
    from collections.abc import Callable

    from logitport import EditRequest, RowEdits
    from logitport_runner.process_executor import ProcessExecutor
    from logitport_session.processor_sources.source import Source

    Ship = Callable[..., Source]


class AcceptsOnce(EditProcessor):
    """Refuses parameters that its process has checked before."""

    checked: ClassVar[list[Any]] = []

    @classmethod
    def validate_params(cls, params: Any) -> None:
        if params in cls.checked:
            raise InvalidArgument("checked before")
        cls.checked.append(params)
        if params.get("bad"):
            raise InvalidArgument("bad")

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        pass


class TestMemory:
    def test_entries_differ_by_processor_and_by_each_column(self) -> None:
        validated = ValidatedParams()
        validated.add("p", [b"ab", b"c"])
        assert validated.has("p", [b"ab", b"c"])
        for processor, columns in [("q", [b"ab", b"c"]), ("p", [b"a", b"bc"]), ("p", [b"ab"]), ("pa", [b"b", b"c"])]:
            assert not validated.has(processor, columns)

    def test_the_least_recently_used_entry_is_evicted(self) -> None:
        validated = ValidatedParams(limit=2)
        validated.add("p", [b"1"])
        validated.add("p", [b"2"])
        assert validated.has("p", [b"1"])
        validated.add("p", [b"3"])
        assert len(validated) == 2
        assert [validated.has("p", [number]) for number in (b"1", b"2", b"3")] == [True, False, True]


def test_sampling_parameters_that_the_check_does_not_get_make_no_difference(
    workers: ProcessExecutor, ship: Ship
) -> None:
    """Engines complete them after the front end's check."""
    dialect = workers.load(ship(AcceptsOnce, tenant="sampling"))
    dialect.validate({"n": 1}, {})
    dialect.validate({"n": 1}, {"max_tokens": 7})
