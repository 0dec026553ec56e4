"""A processor in a worker, without the process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from logitport import History
from logitport_server.worker.output import Output
from logitport_server.worker.worker_processor import WorkerProcessor

DIALECT = cast("Any", SimpleNamespace(start=lambda context, params: None, token_callback=lambda state: None))


def processor(output: Output | None) -> WorkerProcessor:
    """A processor with two requests."""
    made = WorkerProcessor(DIALECT, output=output)
    for number in (1, 2):
        made.start(number, cast("Any", SimpleNamespace(history=History([1]))), {})
    return made


def test_only_the_output_of_a_call_for_one_request_is_shown() -> None:
    output = Output()
    output.begin()
    output.write(b"a prompt")
    shared = processor(output)
    for numbers, shown in (([1, 2], ""), ([1, 0], "a prompt"), ([2, 2], "a prompt"), ([0, 0], "a prompt")):
        shared.update(numbers, [0] * len(numbers), [], [])
        assert shared.output_of_one() == shown


def test_output_that_is_not_kept() -> None:
    assert processor(None).output_of_one() == ""
