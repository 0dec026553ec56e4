"""The checksum of a history, in both implementations."""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logitport.core import compiled
from logitport.core.history import extend_crc

if TYPE_CHECKING:
    from tests.core.implementations import Implementation

INT32 = st.integers(-(2**31), 2**31 - 1)


@given(st.lists(st.lists(INT32, max_size=70), max_size=4))
def test_it_is_the_crc32_of_little_endian_ids(implementation: Implementation, parts: list[list[int]]) -> None:
    history = implementation.history()
    expected = 0
    for ids in parts:
        history.extend(ids)
        expected = zlib.crc32(struct.pack(f"<{len(ids)}i", *ids), expected)
        assert history.crc() == expected


@given(st.integers(0, 2**32 - 1), st.lists(INT32, max_size=70))
def test_a_checksum_is_extended_by_ids(crc: int, ids: list[int]) -> None:
    expected = zlib.crc32(struct.pack(f"<{len(ids)}i", *ids), crc)
    assert extend_crc(crc, ids) == expected
    assert extend_crc(crc, np.array(ids, np.int32)) == expected  # type: ignore[arg-type]


@pytest.mark.skipif(compiled.core is None, reason=f"the compiled core does not run: {compiled.REASON}")
@given(st.integers(0, 2**32 - 1), st.lists(INT32, max_size=70))
def test_processors_without_carry_less_multiplication_give_the_same(crc: int, ids: list[int]) -> None:
    array = np.array(ids, np.int32)
    assert compiled.core.extend_crc_by_table(crc, array) == zlib.crc32(array.tobytes(), crc)


@given(st.lists(INT32, max_size=40), st.lists(INT32, max_size=40))
def test_ids_may_come_in_parts(first: list[int], second: list[int]) -> None:
    assert extend_crc(extend_crc(0, first), second) == extend_crc(0, first + second)


@pytest.mark.parametrize("ids", [[2**31], [-(2**31) - 1], ["a"], [1.5]])
def test_it_refuses_what_is_no_integer_of_32_bits(ids: list[Any]) -> None:
    with pytest.raises(struct.error):
        extend_crc(0, ids)
