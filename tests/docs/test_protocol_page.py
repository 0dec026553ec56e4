"""docs/protocol.md matches the code."""

from __future__ import annotations

import json
import re

import numpy as np

from logitport import History, LogitportError, RowEdits, errors
from logitport.core.edits import Edits
from logitport.core.history import extend_crc
from logitport.ops.apply_edits import naive
from logitport.system.local_frames import LENGTH
from logitport_proto import common_pb2, processing_pb2
from logitport_server.access import grpc_errors
from logitport_server.transports import local_connection, local_socket
from tests.docs.pages import ROOT, codes, read

PAGE = read("docs/protocol.md")


def test_the_table_of_errors_is_the_table_of_errors() -> None:
    shown = [(code, status, exception) for _, code, status, exception, _ in codes(PAGE, "| what happened |")]
    table = [
        (common_pb2.ErrorCode.Name(code).removeprefix("ERROR_CODE_"), status, error.__name__)
        for code, error, status in errors._TABLE
    ]
    assert shown == table


def test_errors_without_a_code_are_listed() -> None:
    all_errors = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, LogitportError)]
    listed = PAGE[PAGE.index("The SDK raises, without a code") :]
    assert set(re.findall(r"`(\w+)`", listed)) == {cls.__name__ for cls in all_errors if not cls.code}


def test_every_frame_and_reply_is_listed() -> None:
    frames = {tuple(row[:2]) for row in codes(PAGE, "| frame | reply |")}
    requests = {field.name for field in processing_pb2.SessionRequest.DESCRIPTOR.oneofs_by_name["frame"].fields}
    replies = {field.name for field in processing_pb2.SessionResponse.DESCRIPTOR.oneofs_by_name["frame"].fields}
    assert {frame.strip("`") for frame, _ in frames} == requests | {"any"}
    assert {reply.strip("`") for _, reply in frames} == replies


def test_every_kind_of_edit_is_listed() -> None:
    kinds = {name.removeprefix("EDIT_KIND_") for name in common_pb2.EditKind.keys()} - {"UNSPECIFIED"}  # noqa: SIM118
    assert {row[0] for row in codes(PAGE, "| kind | effect on the row |")} == kinds


def test_the_columns_of_a_step_are_listed() -> None:
    columns = {field.name for field in processing_pb2.Step.DESCRIPTOR.fields}
    assert all(f"`{column}`" in PAGE or f"`{column} " in PAGE for column in columns)


def test_the_key_of_the_metadata_is_listed() -> None:
    assert f"`{errors.METADATA_KEY}`" in PAGE


def test_the_checksums_of_the_example() -> None:
    rows = codes(PAGE, "| ids | bytes in hexadecimal | checksum |")
    crc = 0
    history: list[int] = []
    for ids, data, checksum in rows:
        new = [int(one) for one in ids.split(",")][len(history) :]
        history += new
        crc = extend_crc(crc, new)
        assert np.array(history, "<i4").tobytes().hex() == data
        assert crc == History(history).crc() == int(checksum)
        assert f"`history_crc` {checksum}" in PAGE
    assert len(rows) == 2


def test_the_example_of_bias() -> None:
    row = RowEdits()
    row.bias([1], [3e38])
    row.bias([1], [3e38])
    logits = np.zeros((1, 4), np.float32)
    naive.apply_edits(Edits.pack([(0, row)], 4), logits)
    assert logits.tolist() == [[0, float(np.float32(3.4028235e38)), 0, 0]]
    assert "3.4028235e38, not infinity" in PAGE


def test_the_handshake_of_the_local_transport() -> None:
    seconds = f"at most {local_socket._HANDSHAKE_SECONDS:.0f} seconds"
    assert f"the {local_socket._TOKEN_BYTES} bytes of `access_token`, {seconds}" in PAGE
    assert local_connection._WELCOME == b"\1"
    assert LENGTH.format == "<I"


def test_text_in_trailers_is_cut_as_described() -> None:
    assert f"cut to\n  {grpc_errors._MAX_TEXT_LENGTH} bytes" in PAGE


def test_the_golden_files_are_listed() -> None:
    golden = ROOT / "tests" / "proto" / "golden"
    files = sorted(path.name for path in golden.glob("*.json"))
    assert all(f"`{name}`" in PAGE for name in files)
    keys = {key for name in files for entry in json.loads((golden / name).read_text()) for key in entry}
    assert all(f"`{key}`" in PAGE for key in keys)
