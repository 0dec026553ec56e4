"""Regions of host memory: sealed, bounded, and of one session."""

from __future__ import annotations

import fcntl
import os
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from logitport.errors import InvalidArgument, LimitExceeded
from logitport_proto import common_pb2
from logitport_session.shared_memory.regions import Region, Regions
from tests.descriptors import descriptors

if TYPE_CHECKING:
    from collections.abc import Iterator

SIZE = 4096


@pytest.fixture
def regions() -> Iterator[Regions]:
    with closing(Regions(2 * SIZE)) as regions:
        yield regions


def tensor_in(region_id: int, rows: int, width: int, byte_offset: int = 0, datatype: str = "FP32") -> common_pb2.Tensor:
    place = common_pb2.Region(region_id=region_id, byte_offset=byte_offset)
    return common_pb2.Tensor(datatype=datatype, shape=[rows, width], region=place)


def test_two_views_are_the_same_memory(regions: Regions) -> None:
    number, _ = regions.open(SIZE, 0)
    regions.tensor(tensor_in(number, 2, 8))[1, 3] = 5.0
    assert regions.tensor(tensor_in(number, 1, 8, byte_offset=32))[0, 3] == 5.0


@pytest.mark.parametrize("size", [0, SIZE - 1, SIZE + 1, 1 << 40])
def test_the_size_of_a_region_is_sealed(size: int) -> None:
    region = Region(SIZE)
    with pytest.raises(PermissionError):
        os.ftruncate(region.fd, size)
    with pytest.raises(PermissionError):
        fcntl.fcntl(region.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    region.close()


@given(
    rows=st.integers(0, 1 << 62),
    width=st.integers(0, 1 << 62),
    byte_offset=st.integers(0, (1 << 64) - 1),
    datatype=st.sampled_from(["FP32", "FP16", "BF16"]),
)
def test_a_view_outside_its_region_is_refused(rows: int, width: int, byte_offset: int, datatype: str) -> None:
    with closing(Regions(SIZE)) as regions:
        check_view(regions, rows, width, byte_offset, datatype)


def check_view(regions: Regions, rows: int, width: int, byte_offset: int, datatype: str) -> None:
    number, _ = regions.open(SIZE, 0)
    element = 4 if datatype == "FP32" else 2
    fits = byte_offset % element == 0 and byte_offset + rows * width * element <= SIZE
    message = tensor_in(number, rows, width, byte_offset, datatype)
    if fits:
        assert regions.tensor(message).shape == (rows, width)
    else:
        with pytest.raises(InvalidArgument, match="are not inside"):
            regions.tensor(message)
    regions.close()


def test_the_last_element_is_inside_and_the_next_is_not(regions: Regions) -> None:
    number, _ = regions.open(SIZE, 0)
    assert regions.tensor(tensor_in(number, 1, 1, byte_offset=SIZE - 4)).shape == (1, 1)
    with pytest.raises(InvalidArgument):
        regions.tensor(tensor_in(number, 1, 1, byte_offset=SIZE))


def test_a_region_of_another_session_is_unknown(regions: Regions) -> None:
    number, _ = regions.open(SIZE, 0)
    other = Regions(SIZE)
    with pytest.raises(InvalidArgument, match=f"no region {number}"):
        other.tensor(tensor_in(number, 1, 1))


@pytest.mark.parametrize("size", [0, -1, -(1 << 63)])
def test_invalid_sizes_are_refused(regions: Regions, size: int) -> None:
    with pytest.raises(InvalidArgument, match="send 1 or more"):
        regions.open(size, 0)


def test_the_bytes_of_a_session_are_limited(regions: Regions) -> None:
    first, _ = regions.open(SIZE, 0)
    regions.open(SIZE, 0)
    with pytest.raises(LimitExceeded, match="max_region_bytes"):
        regions.open(1, 0)
    third, _ = regions.open(SIZE, first)
    with pytest.raises(InvalidArgument):
        regions.tensor(tensor_in(first, 1, 1))
    assert regions.tensor(tensor_in(third, 1, 1)).dtype == torch.float32


def test_the_regions_of_a_session_are_limited() -> None:
    regions = Regions(1 << 20)
    numbers = [regions.open(1, 0)[0] for _ in range(4)]
    with pytest.raises(LimitExceeded, match="the session has 4 regions"):
        regions.open(1, 0)
    regions.open(1, numbers[0])
    regions.close()


def test_a_closed_region_leaves_no_descriptor(regions: Regions) -> None:
    before = descriptors()
    _, region = regions.open(SIZE, 0)
    view = regions.tensor(tensor_in(1, 1, 4))
    regions.close()
    assert region.fd == -1
    view[0] = 1.0  # memory in use stays mapped
    del view, region
    assert descriptors() <= before
