"""The JavaScript example against a real server, and its edits against Python's."""

from __future__ import annotations

import json
import shutil
import subprocess
from base64 import b64decode, b64encode
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from google.protobuf.json_format import MessageToDict, ParseDict

from logitport.core.edits import Edits, RowEdits, pack_bits
from logitport.errors import InvalidArgument
from logitport.ops import apply_edits
from logitport_proto import common_pb2
from tests.proto.golden import files as golden
from tests.toy_processors import Double, RaisesInCall

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from logitport import Client

HERE = Path(__file__).parent
EXAMPLE = HERE.parents[1] / "examples" / "node"
VOCAB_SIZE = 1000  # no multiple of 32, and large enough that short lists are not packed as bitmasks

RunNode = Callable[..., list[Any]]


@pytest.fixture(scope="module")
def run_node() -> RunNode:
    """Runs a script and returns the JSON lines that it prints."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("needs node and npm")
    installed, lock = EXAMPLE / "node_modules" / ".package-lock.json", EXAMPLE / "package-lock.json"
    if not installed.exists() or installed.stat().st_mtime < lock.stat().st_mtime:
        _run([npm, "ci"], EXAMPLE)

    def run(script: Path, *arguments: str, stdin: str = "") -> list[Any]:
        return [json.loads(line) for line in _run([node, str(script), *arguments], EXAMPLE, stdin).splitlines()]

    return run


def _run(command: list[str], folder: Path, stdin: str = "") -> str:
    done = subprocess.run(command, cwd=folder, input=stdin, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _logits(numbers: list[float | None]) -> NDArray[np.float32]:
    """Convert JSON numbers to logits; null means -inf."""
    return np.array([-np.inf if number is None else number for number in numbers], np.float32)


def test_the_lock_holds_hashes_and_no_addresses() -> None:
    packages = json.loads((EXAMPLE / "package-lock.json").read_text())["packages"]
    del packages[""]
    assert packages
    assert all(package["integrity"].startswith("sha512-") for package in packages.values())
    assert not any("resolved" in package for package in packages.values())


def test_apply_bans_another_list_for_each_row(run_node: RunNode, server: Any) -> None:
    expected = ((np.arange(3 * 16) * 7 % 32) / 8).astype(np.float32).reshape(3, 16)
    expected[0, :3] = expected[1, 15] = -np.inf

    *rows, summary = run_node(EXAMPLE / "apply.mjs", server.target)

    assert [row["row"] for row in rows] == [0, 1, 2]
    np.testing.assert_array_equal([_logits(row["logits"]) for row in rows], expected)
    assert summary == {"applied": [{"processor": "disallowed_tokens", "rows": 3, "display_name": ""}], "failures": []}


def test_session_generates_what_numpy_generates(run_node: RunNode, server: Any) -> None:
    vocabulary = np.arange(64)
    histories = {"plain": [1, 2, 3], "banned": [1, 2, 3], "both": [1, 2, 3]}
    expected = []
    for step in range(24):
        if step == 12:
            del histories["plain"]
        sampled = {}
        for name, history in histories.items():
            logits = (history[-1] * 31 + vocabulary * 17) % 101 / np.float32(8)
            if name != "plain":
                logits[[5, 40, 41, 42]] = -np.inf
            if name == "both":
                logits[[after for before, after in pairwise(history) if before == history[-1]]] = -np.inf
            sampled[name] = int(logits.argmax())
            history.append(sampled[name])
        expected.append({"step": step, "sampled": sampled, "applied": {"disallowed_tokens": 2, "no_repeat_ngram": 1}})
    assert len(set(histories["both"])) > len(set(histories["banned"])), "the model gives no n-gram to forbid"

    assert run_node(EXAMPLE / "session.mjs", server.target) == expected


def test_session_synchronises_reports_failures_and_rejects(run_node: RunNode, server: Any, client: Client) -> None:
    names = "node/doubling", "node/failing"
    digests = [
        client.register(processor, name=name).digest
        for processor, name in zip((Double, RaisesInCall), names, strict=True)
    ]

    (found,) = run_node(HERE / "session_cases.mjs", server.target, *names)

    expected = np.ones((4, 8), np.float32)
    expected[0, 2] = -np.inf
    expected[1] = 2
    expected[1, 0] = -np.inf
    untouched_by_failure = [0, 1, 3]
    processed = _logits(found.pop("logits")).reshape(4, 8)
    np.testing.assert_array_equal(processed[untouched_by_failure], expected[untouched_by_failure])
    count, code, traceback = found.pop("failures")
    assert (count, code) == (1, "ERROR_CODE_PROCESSOR_FAILED")
    assert "out of luck" in traceback
    in_background = np.ones((2, 8), np.float32)
    in_background[0] = 2
    in_background[1, 0] = -np.inf
    np.testing.assert_array_equal(_logits(found.pop("in_background")).reshape(2, 8), in_background)
    assert found.pop("lost") in ("Error", "none")  # "none" if it was admitted before the session ended
    assert found == {
        "skipped": [1, "ERROR_CODE_PROCESSOR_FAILED"],
        "applied": {"no_repeat_ngram": 1, digests[0]: 1, "disallowed_tokens": 1},
        "reused_slot": True,
        "placeholder": "RangeError",
        "unknown_processor": "ERROR_CODE_NOT_FOUND",
        "wrong_params": "ERROR_CODE_INVALID_ARGUMENT",
        "wrong_rows": "ERROR_CODE_INVALID_ARGUMENT",
        "refused_in_background": "ERROR_CODE_NOT_FOUND",
        "ended": "Error",
    }


def _some_edits(generator: np.random.Generator) -> RowEdits:
    """Random edits of all five kinds, in any valid order; ids may be duplicated."""
    edits = RowEdits()
    if generator.random() < 0.3:
        edits.force(int(generator.integers(VOCAB_SIZE)))
    for _ in range(generator.integers(0, 6)):
        ids = generator.integers(0, VOCAB_SIZE, generator.integers(0, 12))
        match generator.integers(4):
            case 0:
                edits.deny(ids)
            case 1:
                edits.allow(ids)
            case 2:
                edits.bias(ids, generator.normal(0, 10.0 ** generator.integers(-3, 38), ids.size).astype(np.float32))
            case _:
                edits.bitmask(pack_bits(generator.random(VOCAB_SIZE) < 0.7))
    return edits


def _overflowing() -> RowEdits:
    edits = RowEdits()
    edits.bias([7, 7], [3e38, 3e38])
    edits.bias([7, 8, 8], [3e38, -3e38, -3e38])
    return edits


def _case(message: common_pb2.Edits, logits: NDArray[np.float32]) -> dict[str, Any]:
    columns = {field.name: b64encode(getattr(message, field.name)).decode() for field in message.DESCRIPTOR.fields}
    data = b64encode(logits.tobytes()).decode()
    return {"message": columns, "rows": len(logits), "vocab_size": logits.shape[1], "logits": data}


def test_edits_are_applied_as_python_applies_them_bit_for_bit(run_node: RunNode) -> None:
    generator = np.random.default_rng(20)
    cases, expected, kinds = [], [], set()
    for _ in range(60):
        logits = generator.normal(0, 5, (6, VOCAB_SIZE)).astype(np.float32)
        rows = generator.permutation(5)[: generator.integers(0, 6)]
        row_edits = [(int(row), _some_edits(generator)) for row in rows]
        edits = Edits.pack([*row_edits, (5, _overflowing())], VOCAB_SIZE)
        kinds |= set(edits.kinds.tolist())
        cases.append(_case(edits.to_proto(), logits))
        apply_edits(edits, logits)
        expected.append(logits)
    cases.append(_case(common_pb2.Edits(), expected[0]))
    expected.append(expected[0])
    assert kinds == set(common_pb2.EditKind.values()) - {common_pb2.EDIT_KIND_UNSPECIFIED}

    (answers,) = run_node(HERE / "apply_edits.mjs", stdin=json.dumps(cases))

    for answer, logits in zip(answers, expected, strict=True):
        assert b64decode(answer["logits"]) == logits.tobytes()


def test_golden_messages_are_encoded_and_decoded_as_in_python(run_node: RunNode) -> None:
    loaded = ("logitport.v1.Error", "logitport.v1.Apply", "logitport.v1.Session")  # the example has no registry
    entries = [entry for entry in golden.load().values() if entry["message"].startswith(loaded)]
    assert {entry["message"] for entry in entries} == {
        "logitport.v1.ApplyRequest",
        "logitport.v1.ApplyResponse",
        "logitport.v1.Error",
        "logitport.v1.SessionRequest",
        "logitport.v1.SessionResponse",
    }

    (answers,) = run_node(HERE / "golden_messages.mjs", stdin=json.dumps(entries))

    for entry, answer in zip(entries, answers, strict=True):
        assert answer["hex"] == entry["hex"], entry["name"]
        assert answer["columns"] == entry["columns"], entry["name"]
        decoded = ParseDict(answer["json"], golden.message_type(entry["message"])())
        assert MessageToDict(decoded, preserving_proto_field_name=True) == entry["json"], entry["name"]


def _i4(*values: int) -> bytes:
    return np.array(values, "<i4").tobytes()


def _f4(*values: float) -> bytes:
    return np.array(values, "<f4").tobytes()


# Each differs in one field or value from a valid message.
WRONG = {
    "half an element": {"rows": b"\0\0\0"},
    "a row too many": {"rows": _i4(0, 0, 1)},
    "a kind too many": {"kinds": b"\1\4\1"},
    "an unknown kind": {"kinds": b"\1\6"},
    "kind 0": {"kinds": b"\0\4"},
    "no offsets": {"offsets": b""},
    "an offset too many": {"offsets": _i4(0, 2, 4, 4)},
    "offsets that begin late": {"offsets": _i4(1, 2, 4)},
    "offsets that fall": {"offsets": _i4(0, 5, 4)},
    "offsets that end early": {"offsets": _i4(0, 2, 3)},
    "a row below the batch": {"rows": _i4(-1, -1)},
    "a row beyond the batch": {"rows": _i4(2, 2)},
    "an id below the vocabulary": {"ids": _i4(-1, 6, 7, 8)},
    "an id beyond the vocabulary": {"ids": _i4(5, 6, 7, VOCAB_SIZE)},
    "a value too many": {"values": _f4(0, 0, 1, 2, 3)},
    "no values": {"values": b""},
    "a value that is not a number": {"values": _f4(0, 0, 1, np.nan)},
    "an infinite value": {"values": _f4(0, 0, -np.inf, 1)},
    "a FORCE of two ids": {"kinds": b"\3\4"},
    "a FORCE that is not first": {"kinds": b"\1\3", "offsets": _i4(0, 3, 4)},
    "a BITMASK too short": {"kinds": b"\5\4"},
    "scattered rows": {
        "rows": _i4(0, 1, 0),
        "kinds": b"\1\1\1",
        "offsets": _i4(0, 1, 2, 4),
    },
}


def test_edits_that_python_rejects_are_rejected(run_node: RunNode) -> None:
    right = {
        "rows": _i4(0, 0),
        "kinds": b"\1\4",
        "offsets": _i4(0, 2, 4),
        "ids": _i4(5, 6, 7, 8),
        "values": _f4(0, 0, 1, 2),
    }
    logits = np.zeros((2, VOCAB_SIZE), np.float32)
    Edits.from_proto(common_pb2.Edits(**right), 2, VOCAB_SIZE)
    messages = [common_pb2.Edits(**right | wrong) for wrong in WRONG.values()]
    for message in messages:
        with pytest.raises(InvalidArgument):
            Edits.from_proto(message, 2, VOCAB_SIZE)

    cases = [_case(message, logits) for message in [common_pb2.Edits(**right), *messages]]
    ((accepted, *refused),) = run_node(HERE / "apply_edits.mjs", stdin=json.dumps(cases))

    assert "logits" in accepted
    assert [name for name, answer in zip(WRONG, refused, strict=True) if "refused" not in answer] == []
