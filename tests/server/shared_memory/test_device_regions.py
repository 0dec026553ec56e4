"""Regions of GPU memory: the server accepts only what CUDA confirms."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport import InvalidArgument, LimitExceeded, LogitportError
from logitport_proto import common_pb2, processing_pb2
from logitport_session.shared_memory import device_regions
from logitport_session.shared_memory.regions import Regions
from tests.recorded_cuda import RecordedCuda, RecordedGpu

if TYPE_CHECKING:
    from collections.abc import Iterator

ALLOCATED = 4096
LIMIT = 2 * ALLOCATED


@pytest.fixture
def gpu() -> RecordedGpu:
    return RecordedGpu()


@pytest.fixture
def server(gpu: RecordedGpu) -> Any:
    return RecordedCuda(gpu, "server")


@pytest.fixture
def regions(server: Any) -> Iterator[Regions]:
    with closing(Regions(LIMIT, server)) as regions:
        yield regions


@pytest.fixture
def message(gpu: RecordedGpu) -> processing_pb2.ShareDeviceMemory:
    """A valid message of an engine."""
    engine = RecordedCuda(gpu, "engine")
    (_, ready), (_, edited) = engine.event(), engine.event()
    return processing_pb2.ShareDeviceMemory(
        memory_handle=engine.allocate(ALLOCATED).handle,
        device_uuid=gpu.uuid,
        size_bytes=ALLOCATED,
        ready_event=ready,
        edited_event=edited,
    )


def tensor_in(region_id: int, rows: int = 1, width: int = 8, byte_offset: int = 0) -> common_pb2.Tensor:
    place = common_pb2.Region(region_id=region_id, byte_offset=byte_offset)
    return common_pb2.Tensor(datatype="FP32", shape=[rows, width], region=place)


def test_a_region_is_the_memory_of_the_engine(gpu: RecordedGpu, regions: Regions, message: Any) -> None:
    message.byte_offset, message.size_bytes = 16, 64
    region_id = regions.share(message)
    regions.tensor(tensor_in(region_id, byte_offset=32)).fill_(1.0)
    floats = torch.frombuffer(gpu.memory[message.memory_handle], dtype=torch.float32)
    assert floats.nonzero().flatten().tolist() == list(range(12, 20))
    assert regions.memory(tensor_in(region_id)) == "device"


@pytest.mark.parametrize(
    ("fields", "error", "expected"),
    [
        ({"memory_handle": b""}, InvalidArgument, "memory_handle has 0 bytes; send CUDA's 64"),
        ({"memory_handle": bytes(65)}, InvalidArgument, "memory_handle has 65 bytes"),
        ({"memory_handle": b"\xff" * 64}, InvalidArgument, "CUDA_ERROR_INVALID_VALUE; share host memory"),
        ({"ready_event": bytes(63)}, InvalidArgument, "ready_event has 63 bytes"),
        ({"ready_event": b"\xff" * 64}, InvalidArgument, "invalid resource handle"),
        ({"edited_event": b""}, InvalidArgument, "edited_event has 0 bytes"),
        ({"edited_event": b"\xff" * 64}, InvalidArgument, "invalid resource handle"),
        ({"device_uuid": bytes(16)}, InvalidArgument, "is on GPU 0{32}, but the server uses GPU (07){16}"),
        ({"device_uuid": b""}, InvalidArgument, "share host memory"),
        ({"size_bytes": 0}, InvalidArgument, "send 1 byte or more"),
        ({"size_bytes": -1}, InvalidArgument, "send 1 byte or more"),
        ({"size_bytes": -(1 << 63)}, InvalidArgument, "send 1 byte or more"),
        ({"size_bytes": ALLOCATED + 1}, InvalidArgument, f"are not inside the allocation's {ALLOCATED}"),
        ({"size_bytes": (1 << 63) - 1}, LimitExceeded, "max_region_bytes"),
        ({"byte_offset": 16}, InvalidArgument, f"{ALLOCATED} bytes at offset 16 are not inside"),
        ({"byte_offset": 8, "size_bytes": 8}, InvalidArgument, "at a multiple of 16"),
        ({"byte_offset": -16}, InvalidArgument, "at offset -16"),
        ({"byte_offset": ((1 << 63) - 1) & ~15}, InvalidArgument, "are not inside"),
    ],
)
def test_invalid_fields_are_refused(
    gpu: RecordedGpu, regions: Regions, message: Any, fields: dict[str, Any], error: type[LogitportError], expected: str
) -> None:
    for name, value in fields.items():
        setattr(message, name, value)
    with pytest.raises(error, match=expected):
        regions.share(message)
    assert gpu.record.count("server: open_memory") <= gpu.record.count("server: closes the memory") + 1
    with pytest.raises(InvalidArgument, match="no region 1"):
        regions.tensor(tensor_in(1))


def test_one_event_for_both_ends_is_refused(regions: Regions, message: Any) -> None:
    message.edited_event = message.ready_event
    with pytest.raises(InvalidArgument, match="send two events"):
        regions.share(message)


def test_a_server_without_a_gpu_refuses_gpu_memory(message: Any) -> None:
    regions = Regions(LIMIT)
    assert regions.device_uuid == b""
    with pytest.raises(InvalidArgument, match="shares no GPU memory"):
        regions.share(message)


def test_one_limit_for_both_kinds_of_memory(regions: Regions, message: Any) -> None:
    regions.open(ALLOCATED + 1, 0)
    with pytest.raises(LimitExceeded, match="max_region_bytes"):
        regions.share(message)


@pytest.mark.parametrize(
    ("rows", "byte_offset"), [(ALLOCATED // 32 + 1, 0), (1, ALLOCATED), (1, 2), (1, (1 << 64) - 4)]
)
def test_a_view_outside_its_region_is_refused(regions: Regions, message: Any, rows: int, byte_offset: int) -> None:
    region_id = regions.share(message)
    assert len(regions.tensor(tensor_in(region_id, ALLOCATED // 32))) == ALLOCATED // 32
    with pytest.raises(InvalidArgument, match="are not inside"):
        regions.tensor(tensor_in(region_id, rows, byte_offset=byte_offset))


def test_memory_stays_open_while_a_view_exists(gpu: RecordedGpu, regions: Regions, message: Any) -> None:
    """A processor may keep its logits. Access to closed memory would make the GPU unusable for the whole server."""
    region_id = regions.share(message)
    kept = regions.tensor(tensor_in(region_id))
    regions.close_region(region_id)
    assert "server: closes the memory" not in gpu.record
    kept.fill_(1.0)
    del kept
    assert gpu.record[-1] == "server: closes the memory"


def test_closing_an_unknown_region_does_nothing(regions: Regions) -> None:
    regions.close_region(7)


def test_memory_is_closed_when_its_work_has_ended(gpu: RecordedGpu, regions: Regions, message: Any) -> None:
    regions.close_region(regions.share(message))
    assert gpu.record[-2:] == ["server: queries whether a stream is idle", "server: closes the memory"]


@pytest.mark.parametrize("how", ["never", "fails"])
def test_memory_stays_open_if_its_work_does_not_end(
    gpu: RecordedGpu, server: Any, regions: Regions, message: Any, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_regions, "_IDLE_SECONDS", 0.01)
    monkeypatch.setattr(device_regions, "_kept_open", [])
    region_id = regions.share(message)
    server.idle = False
    server.fails = {"query"} if how == "fails" else set()
    with pytest.raises(InvalidArgument, match="do not free its memory"):
        regions.close_region(region_id)
    regions.share(message)
    regions.close()
    assert not {"server: closes the memory", "server: gives a stream back"} & set(gpu.record)


def test_events_keep_their_order_if_processing_raises(gpu: RecordedGpu, regions: Regions, message: Any) -> None:
    region_id = regions.share(message)
    gpu.record.clear()
    with pytest.raises(KeyError), regions.lent(tensor_in(region_id)):
        raise KeyError
    assert gpu.record == [
        "server: works on a stream",
        "server: a stream waits for ready",
        "server: records edited on a stream",
    ]


def test_nothing_runs_if_waiting_for_the_event_fails(
    gpu: RecordedGpu, server: Any, regions: Regions, message: Any
) -> None:
    region_id = regions.share(message)
    server.fails = {"ready.wait"}
    with pytest.raises(InvalidArgument, match="share host memory"), regions.lent(tensor_in(region_id)):
        pytest.fail("this must not run")
    assert "server: records edited on a stream" not in gpu.record


def test_host_memory_of_the_session_uses_the_same_stream(gpu: RecordedGpu, regions: Regions, message: Any) -> None:
    """A processor has scratch memory that two streams must not share."""
    regions.share(message)
    host, _ = regions.open(64, 0)
    gpu.record.clear()
    with regions.lent(tensor_in(host)):
        pass
    assert gpu.record == ["server: works on a stream"]
