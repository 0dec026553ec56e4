"""Divides the memory for histories and states of a principal among its processes."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from logitport.errors import LogitportError
from logitport_server.principal_process.process_messages import BorrowMemory, GiveBackMemory, MemoryPart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from logitport_server.front_door.running_process import Handler, RunningProcess
    from logitport_server.principal_process.message import Message

_KEY = "memory"
# For a process to give back what it does not use.
_SECONDS = 1.0


class MemoryShares:
    """Lends the processes of each principal parts of its limit. All methods belong to the event loop.

    The first process that needs memory gets all of it, so that most principals are never divided. Another process gets
    half of what the others have left. What was lent to a process is free again when it has ended.

    Args:
        limit: bytes of one principal.
        processes: returns the running processes.

    Attributes:
        handlers: for the messages of processes, by their type.
    """

    def __init__(self, limit: int, processes: Callable[[], Iterable[RunningProcess]]) -> None:
        self.handlers: Mapping[type[Message], Handler] = {BorrowMemory: self._lend}
        self._limit = limit
        self._processes = processes

    async def _lend(self, process: RunningProcess, _message: BorrowMemory, _: list[int]) -> MemoryPart:
        free = self._free(process.principal)
        if not free:
            others = [other for other in self._of(process.principal) if other is not process]
            await asyncio.gather(*map(_reclaim, others))
            free = self._free(process.principal)
        process.data[_KEY] = process.data.get(_KEY, 0) + free
        return MemoryPart(num_bytes=free)

    def _free(self, principal: str) -> int:
        lent: int = sum(process.data.get(_KEY, 0) for process in self._of(principal))
        return self._limit - lent

    def _of(self, principal: str) -> list[RunningProcess]:
        return [process for process in self._processes() if process.principal == principal]


async def _reclaim(process: RunningProcess) -> None:
    """Let a process give back a part of what was lent to it. It is not trusted to give back no more."""
    with suppress(LogitportError):  # it has ended, or does not answer
        answer = await process.call(GiveBackMemory(), _SECONDS)
        if isinstance(answer, MemoryPart):
            process.data[_KEY] = max(0, process.data.get(_KEY, 0) - max(0, answer.num_bytes))
