"""Access beyond a region: by offset, size, number or descriptor, after its end, or from another session."""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from logitport import Request
from logitport_proto import processing_pb2
from tests.attacks.conftest import columns
from tests.descriptors import descriptors
from tests.toy_processors import AddOneInPlace
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable


VOCAB = 64
ROW = 4 * VOCAB
PAGE = mmap.PAGESIZE
SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
ZERO = bytes(4)


@pytest.fixture
def engine(raw_engine: Callable[..., Any]) -> Any:
    return reading(raw_engine())


def reading(engine: Any) -> Any:
    """Attach the local transport and add a request with a processor that reads logits."""
    engine.attach()
    added = engine.send(add={"requests": [{"request": Request(processors=[(AddOneInPlace, {})]).to_proto()}]}).added
    assert added.reads_logits == b"\1"
    return engine


def step(engine: Any) -> None:
    assert engine.send(step=columns(())).edits.logits_rows == ZERO


def process(engine: Any, region_id: int, byte_offset: int = 0, **tensor: Any) -> processing_pb2.SessionResponse:
    place = {"region_id": region_id, "byte_offset": byte_offset}
    return engine.send(logits={"logits": {"datatype": "FP32", "shape": [1, VOCAB], "region": place, **tensor}})  # type: ignore[no-any-return]


def check_intact(engine: Any, region_id: int, descriptor: int, byte_offset: int = 0) -> None:
    """Check that the region still works, and that only the row in it is written."""
    with mmap.mmap(descriptor, 0) as memory:
        memory[:] = bytes(len(memory))
        assert process(engine, region_id, byte_offset).WhichOneof("frame") == "logits"
        expected = bytearray(len(memory))
        expected[byte_offset : byte_offset + ROW] = struct.pack("<f", 1.0) * VOCAB
        assert memory[:] == expected


@pytest.mark.parametrize(
    "byte_offset",
    [
        *(4, ROW, ROW + 4, PAGE, 1, 2, 3),
        *(2**31 - 4, 2**31, 2**32 - 4, 2**32, 2**62, 2**63 - 4, 2**63, 2**64 - ROW, 2**64 - 4, 2**64 - 1),
    ],
)
def test_offsets_beyond_the_region_or_with_overflow(engine: Any, code: Any, byte_offset: int) -> None:
    region_id, descriptor = engine.open_region(ROW)
    step(engine)
    assert code(process(engine, region_id, byte_offset).error) == "INVALID_ARGUMENT"
    check_intact(engine, region_id, descriptor)
    os.close(descriptor)


@pytest.mark.parametrize(
    "tensor",
    [
        {"shape": [2, VOCAB]},
        {"shape": [1, VOCAB + 1]},
        {"shape": [1, 2 * VOCAB]},
        {"shape": [2**32 + 1, VOCAB]},
        {"shape": [1, 2**32 + VOCAB]},
        {"shape": [2**62, 2**62]},
        {"shape": [-1, VOCAB]},
        {"shape": [-1, -VOCAB]},
        {"shape": [1, VOCAB, 2**61]},
        {"shape": [VOCAB]},
        {"shape": []},
        {"datatype": "FP16"},
        {"datatype": "FP64"},
        {"datatype": ""},
    ],
)
def test_sizes_beyond_the_region_or_with_overflow(engine: Any, code: Any, tensor: dict[str, Any]) -> None:
    region_id, descriptor = engine.open_region(ROW)
    step(engine)
    assert code(process(engine, region_id, **tensor).error) == "INVALID_ARGUMENT"
    check_intact(engine, region_id, descriptor)
    os.close(descriptor)


@pytest.mark.parametrize("size_bytes", [0, -1, -(2**63), 2**63 - 1, 2**63 - PAGE, 2**40])
def test_invalid_region_sizes(engine: Any, code: Any, size_bytes: int) -> None:
    before = descriptors()
    reply = engine.send(open_region={"size_bytes": size_bytes})
    assert code(reply.error) in ("INVALID_ARGUMENT", "LIMIT_EXCEEDED")
    assert not engine.local.descriptors
    assert descriptors() <= before


def test_the_limit_of_bytes_covers_all_regions(engine: Any, code: Any) -> None:
    for _ in range(3):
        reply = engine.send(open_region={"size_bytes": 2**30 - 1})
        for descriptor in engine.local.descriptors:
            os.close(descriptor)
    assert code(reply.error) == "LIMIT_EXCEEDED"


def test_tiny_regions_do_not_exhaust_the_descriptors_of_the_server(engine: Any, code: Any) -> None:
    for _ in range(100):
        reply = engine.send(open_region={"size_bytes": 1})
        for descriptor in engine.local.descriptors:
            os.close(descriptor)
    assert code(reply.error) == "LIMIT_EXCEEDED"


def test_the_sum_of_region_sizes_does_not_overflow(engine: Any, code: Any) -> None:
    region_id, descriptor = engine.open_region(ROW)
    for size_bytes in (2**63 - ROW, 2**63 - 1):
        assert code(engine.send(open_region={"size_bytes": size_bytes}).error) == "LIMIT_EXCEEDED"
    step(engine)
    check_intact(engine, region_id, descriptor)
    os.close(descriptor)


@pytest.mark.parametrize("size_bytes", [0, 1, ROW - 1, PAGE - 1, PAGE + 1, 2**40])
def test_the_descriptor_cannot_resize_the_region(engine: Any, size_bytes: int) -> None:
    region_id, descriptor = engine.open_region(PAGE)
    with pytest.raises(PermissionError):
        os.ftruncate(descriptor, size_bytes)
    assert os.fstat(descriptor).st_size == PAGE
    step(engine)
    check_intact(engine, region_id, descriptor, PAGE - ROW)
    os.close(descriptor)


def test_the_seals_of_the_descriptor_cannot_be_changed(engine: Any) -> None:
    region_id, descriptor = engine.open_region(PAGE)
    assert fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & SEALS == SEALS
    for seals in (0, fcntl.F_SEAL_WRITE, 16):  # 16: F_SEAL_FUTURE_WRITE
        with pytest.raises(PermissionError):
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    step(engine)
    check_intact(engine, region_id, descriptor)
    os.close(descriptor)


def test_writing_past_the_end_and_reopening(engine: Any) -> None:
    region_id, descriptor = engine.open_region(PAGE)
    with pytest.raises(PermissionError):
        os.pwrite(descriptor, b"beyond", PAGE)
    with pytest.raises(PermissionError):
        os.posix_fallocate(descriptor, 0, 2 * PAGE)
    reopened = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR)  # a new description of the same file
    with pytest.raises(PermissionError):
        os.ftruncate(reopened, 0)
    step(engine)
    check_intact(engine, region_id, descriptor)
    os.close(reopened)
    os.close(descriptor)


def test_a_replaced_region_is_unusable(engine: Any, code: Any) -> None:
    old, old_descriptor = engine.open_region(ROW)
    new, descriptor = engine.open_region(ROW, replaces=old)
    step(engine)
    assert code(process(engine, old).error) == "INVALID_ARGUMENT"
    check_intact(engine, new, descriptor)
    with mmap.mmap(old_descriptor, 0) as memory:
        assert memory[:] == bytes(ROW)
    os.close(old_descriptor)
    os.close(descriptor)


def test_a_region_after_the_end_of_its_session(attacked: Any, raw_engine: Any) -> None:
    engine = reading(raw_engine())
    _, descriptor = engine.open_region(ROW)
    engine.close()
    maps = Path(f"/proc/{attacked.process.pid}/maps")
    inode = f" {os.fstat(descriptor).st_ino} "
    wait_until(lambda: inode not in maps.read_text())
    with mmap.mmap(descriptor, 0) as memory:
        memory[:] = b"\xff" * ROW  # the server has unmapped it
    os.close(descriptor)


def test_no_region_is_opened_over_grpc(raw_engine: Any, code: Any) -> None:
    assert code(raw_engine().send(open_region={"size_bytes": ROW}).error) == "INVALID_ARGUMENT"


def test_a_region_of_another_session(raw_engine: Any, code: Any) -> None:
    owner, attacker = reading(raw_engine()), reading(raw_engine())
    numbers = []
    for _ in range(3):
        region_id, descriptor = owner.open_region(ROW)
        numbers.append(region_id)
        with mmap.mmap(descriptor, 0) as memory:
            memory[:] = b"\x77" * ROW
        os.close(descriptor)
    step(attacker)
    for region_id in (*numbers, 0, 2**63, 2**64 - 1):
        assert code(process(attacker, region_id).error) == "INVALID_ARGUMENT"
    # Replacing it from another session does not close it either.
    _, own = attacker.open_region(ROW, replaces=numbers[0])
    os.close(own)
    step(owner)
    assert process(owner, numbers[0]).WhichOneof("frame") == "logits"


def test_descriptors_sent_by_a_client_are_closed(attacked: Any, engine: Any, tmp_path: Path) -> None:
    (tmp_path / "own").write_bytes(bytes(ROW))
    own = os.open(tmp_path / "own", os.O_RDWR)
    descriptors = Path(f"/proc/{attacked.process.pid}/fd")
    before = len(os.listdir(descriptors))
    frame = processing_pb2.SessionRequest(seq=engine.seq + 1, open_region={"size_bytes": ROW}).SerializeToString()
    data = struct.pack("<I", len(frame)) + frame
    socket.send_fds(engine.local.connection, [data], [own] * 200)
    reply = engine.local.read()
    engine.seq += 1
    (descriptor,) = engine.local.descriptors
    assert len(os.listdir(descriptors)) <= before + 2  # of the region and of its mapping
    step(engine)
    check_intact(engine, reply.region_opened.region_id, descriptor)
    assert (tmp_path / "own").read_bytes() == bytes(ROW)
    os.close(own)
    os.close(descriptor)


def test_descriptors_sent_with_the_token_are_closed(
    attacked: Any, raw_engine: Any, local_transport_socket: Any
) -> None:
    engine = raw_engine()
    descriptors = Path(f"/proc/{attacked.process.pid}/fd")
    connection = local_transport_socket(engine.opened.local_transport, b"")
    before = len(os.listdir(descriptors))
    socket.send_fds(connection.connection, [engine.opened.local_transport.access_token], [0] * 200)
    assert connection.is_accepted()
    assert (
        len(os.listdir(descriptors)) <= before + 2
    )  # of the connection, which may be accepted meanwhile, and of its reader


def test_a_step_is_processed_once_if_its_logits_are_sent_again(engine: Any, code: Any) -> None:
    region_id, descriptor = engine.open_region(ROW)
    step(engine)
    check_intact(engine, region_id, descriptor)
    assert code(process(engine, region_id).error) == "INVALID_ARGUMENT"
    frame = {"datatype": "FP32", "shape": [1, VOCAB], "region": {"region_id": region_id}}
    assert code(engine.send(seq=engine.seq, logits={"logits": frame}).error) == "INVALID_ARGUMENT"
    with mmap.mmap(descriptor, 0) as memory:
        assert memory[:] == struct.pack("<f", 1.0) * VOCAB
    os.close(descriptor)
