"""docs/protocol.md says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from logitport import LogitportError, errors
from logitport_proto import common_pb2, processing_pb2

PAGE = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()


def rows_of(header: str) -> list[list[str]]:
    """The table below a heading row, cell by cell, without code marks."""
    lines = PAGE[PAGE.index(header) :].splitlines()[2:]
    table = lines[: next((at for at, line in enumerate(lines) if not line.startswith("|")), len(lines))]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in table]


def test_the_table_of_errors_is_the_table_of_errors() -> None:
    told = [(code, status, exception) for _, code, status, exception, _ in rows_of("| what happened |")]
    table = [
        (common_pb2.ErrorCode.Name(code).removeprefix("ERROR_CODE_"), status, error.__name__)
        for error, code, status in errors._TABLE
    ]
    assert told == table


def test_what_is_raised_without_a_code_is_told() -> None:
    silent = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, LogitportError)]
    leaves = {cls for cls in silent if not cls.__subclasses__()} - {error for error, _, _ in errors._TABLE}
    assert set(re.findall(r"`(\w+)`", PAGE[PAGE.index("The SDK raises") :])) == {cls.__name__ for cls in leaves}


def test_every_frame_and_reply_is_told() -> None:
    frames = {tuple(row[:2]) for row in rows_of("| frame | reply |")}
    asked = {field.name for field in processing_pb2.SessionRequest.DESCRIPTOR.oneofs_by_name["frame"].fields}
    answered = {field.name for field in processing_pb2.SessionResponse.DESCRIPTOR.oneofs_by_name["frame"].fields}
    assert {frame.strip("`") for frame, _ in frames} == asked | {"any"}
    assert {reply.strip("`") for _, reply in frames} == answered


def test_every_kind_of_edit_is_told() -> None:
    kinds = {name.removeprefix("EDIT_KIND_") for name in common_pb2.EditKind.keys()} - {"UNSPECIFIED"}  # noqa: SIM118
    assert {row[0] for row in rows_of("| kind | effect on the row |")} == kinds


def test_the_columns_of_a_step_are_told() -> None:
    columns = {field.name for field in processing_pb2.Step.DESCRIPTOR.fields}
    assert all(f"`{column}`" in PAGE or f"`{column} " in PAGE for column in columns)


def test_the_key_of_the_metadata_is_told() -> None:
    assert f"`{errors.METADATA_KEY}`" in PAGE
