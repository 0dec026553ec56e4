"""How the output of processors is shown."""

from __future__ import annotations

import pytest

from logitport import LogitportError
from logitport.admin import ProcessorOutput
from logitport.errors import escaped, from_proto, to_proto


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\tb\nc é 漢", "a\tb\nc é 漢"),
        ("\x1b[2J\r\x00\x7f", "\\x1b[2J\\r\\x00\\x7f"),
        ("\u202eevil\u2028", "\\u202eevil\\u2028"),  # reverses the direction of the text; separates lines
    ],
)
def test_characters_that_cannot_be_printed_are_escaped(text: str, shown: str) -> None:
    assert escaped(text) == shown


def test_output_is_shown_escaped_and_kept_as_it_is() -> None:
    printed = ProcessorOutput("d" * 64, "Ban (sha256:dddddddddddd)", "a\x1b[2J\n", 0.5)

    assert str(printed).endswith(" Ban (sha256:dddddddddddd)\na\\x1b[2J")
    assert printed.text == "a\x1b[2J\n"


def test_error_is_shown_escaped_and_kept_as_it_is() -> None:
    """Another principal may have shipped the processor that raises it."""
    error = LogitportError("raised \x1b[2J", remote_traceback="a\x1b]0;b\x07\n")

    assert str(error) == "raised \\x1b[2J\n\nRemote traceback:\na\\x1b]0;b\\x07"
    assert error.message == "raised \x1b[2J"
    assert error.remote_traceback == "a\x1b]0;b\x07\n"


def test_error_keeps_its_output_on_the_wire() -> None:
    error = LogitportError("it failed", remote_traceback="a traceback\n", output="a\x1b[2J\n")
    received = from_proto(to_proto(error))

    assert received.output == "a\x1b[2J\n"
    assert str(received) == ("it failed\n\nRemote traceback:\na traceback\n\nOutput of the processor:\na\\x1b[2J")
