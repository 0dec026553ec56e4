"""Histories and their checksum, in both implementations."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logitport.core import compiled
from logitport.core.history import extend_crc
from logitport.errors import InvalidArgument

if TYPE_CHECKING:
    from logitport.core.history import PythonHistory
    from tests.core.implementations import Implementation


INT32 = st.integers(-(2**31), 2**31 - 1)
IDS = st.lists(INT32, max_size=150)
# Ids to append, or how many to cut off, and whether the checksum is read after it.
CHANGES = st.lists(st.tuples(st.one_of(IDS, st.integers(0, 200)), st.booleans()), max_size=12)


@given(IDS, IDS, CHANGES)
def test_it_holds_its_ids_and_their_checksum_through_all_changes(
    implementation: Implementation, prompt: list[int], output: list[int], changes: list[tuple[list[int] | int, bool]]
) -> None:
    history, ids = implementation.history(prompt, output), [*prompt, *output]
    for change, reads_checksum in changes:
        if isinstance(change, int):
            del ids[max(len(prompt), len(ids) - change) :]
            history.rewind(len(ids))
        elif len(change) == 1:
            history.append(change[0])
            ids += change
        else:
            history.extend(change)
            ids += change
        if reads_checksum:
            assert history.crc() == zlib.crc32(np.array(ids, "<i4").tobytes())
    assert history.token_ids.tolist() == ids
    assert history.prompt_token_ids.tolist() == prompt
    assert history.output_token_ids.tolist() == ids[len(prompt) :]
    assert (len(history), history.length, history.prompt_length) == (len(ids), len(ids), len(prompt))
    assert history.last_output == (ids[-1] if len(ids) > len(prompt) else None)
    assert [history.at(position) for position in range(len(ids))] == ids
    assert history.crc() == zlib.crc32(np.array(ids, "<i4").tobytes())


@pytest.mark.parametrize(
    "prompt", [(), [1, 2], np.array([1, 2]), np.array([1, 2], np.uint64), np.array([1, 2, 3, 4], np.uint8)[::2]]
)
def test_ids_may_be_any_integers(implementation: Implementation, prompt: object) -> None:
    history = implementation.history(prompt)  # type: ignore[arg-type]
    assert history.token_ids.dtype == np.int32
    assert history.token_ids.tolist() == list(prompt)  # type: ignore[call-overload]


@pytest.mark.parametrize("wrong", [[2**31], [-(2**31) - 1], [2**70], ["a"], [1.5], [None], [[1]], np.array([2**31])])
def test_it_refuses_what_is_no_integer_of_32_bits(implementation: Implementation, wrong: Any) -> None:
    with pytest.raises(InvalidArgument):
        implementation.history(wrong)
    with pytest.raises(InvalidArgument):
        implementation.history([], wrong)
    with pytest.raises((TypeError, ValueError)):
        implementation.history().append(wrong[0])
    with pytest.raises((TypeError, ValueError)):
        implementation.history().extend(wrong)


def _cut(implementation: Implementation) -> PythonHistory:
    history = implementation.history([1, 2, 3], [4, 5, 6])
    history.draft_tokens = 1
    history.rewind(4)
    return history


def test_a_rewind_removes_drafts(implementation: Implementation) -> None:
    assert _cut(implementation).draft_tokens == 0


def test_ids_that_a_rewind_cut_off_can_be_read(implementation: Implementation) -> None:
    assert _cut(implementation).cut_token_ids(6).tolist() == [5, 6]


@pytest.mark.parametrize("length", [-1, 2, 5])
def test_a_rewind_to_a_wrong_length_is_refused(implementation: Implementation, length: int) -> None:
    message = rf"cannot rewind a history of 4 ids to {length}: the length must lie between 3 \(the prompt\) and 4"
    with pytest.raises(InvalidArgument, match=message):
        _cut(implementation).rewind(length)


def test_a_view_stays_readable_while_the_history_grows_and_goes(implementation: Implementation) -> None:
    history = implementation.history([1, 2], [3])
    view = history.token_ids
    history.extend(range(100_000))
    del history
    assert view.tolist() == [1, 2, 3]


def test_the_compiled_history_refuses_positions_and_lengths_outside(
    both: tuple[Implementation, Implementation],
) -> None:
    history = _cut(both[1])
    for position in (-1, 4, 2**40):
        with pytest.raises(IndexError):
            history.at(position)
    for length in (3, 7):
        with pytest.raises(InvalidArgument):
            history.cut_token_ids(length)


# The memory of a history cannot grow. Its capacity must stay that of the memory that it has.
LITTLE_MEMORY = """
import resource, sys
import numpy as np
from logitport_core import _core as core

IDS = 4_000_000
history = core.History(np.arange(IDS, dtype=np.int32), np.empty(0, np.int32))
checksum = history.crc()
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (4 << 20),) * 2)
for _ in range(3):
    try:
        for _ in range(IDS // 2):
            history.append(7)
    except MemoryError:
        history.rewind(IDS)
        assert history.crc() == checksum
    else:
        sys.exit("the memory was there")
"""


@pytest.mark.usefixtures("both")
@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
@pytest.mark.skipif("libasan" in os.environ.get("LD_PRELOAD", ""), reason="the sanitizer ends a process without memory")
def test_a_history_that_gets_no_memory_stays_whole() -> None:
    command = [sys.executable, "-c", LITTLE_MEMORY]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


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


@pytest.mark.parametrize("ids", [[2**31], [-(2**31) - 1], ["a"], [1.5]])
def test_a_checksum_of_what_is_no_integer_of_32_bits_is_refused(ids: list[Any]) -> None:
    with pytest.raises(struct.error):
        extend_crc(0, ids)
