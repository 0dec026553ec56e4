"""Binds the programs of an admitted request, over a connection to its server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitport.errors import from_proto
from logitport.session.frames import add_frames, check_added
from logitport.session.program_trust import LeftToServer
from logitport_proto import processing_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from logitport.session.chain_programs import ChainPrograms
    from logitport.session.frames import Handle
    from logitport.session.request_table import RequestTable

    Exchange = Callable[[processing_pb2.SessionRequest], processing_pb2.SessionResponse]


class ProgramBinding:
    """Binds programs, or makes the server run them.

    Args:
        programs: fetches and verifies them.
        table: the requests of the session, which share the time of its steps.
    """

    def __init__(self, programs: ChainPrograms, table: RequestTable) -> None:
        self._programs = programs
        self._table = table

    def bind(self, handle: Handle, chain: processing_pb2.AdmittedChain, exchange: Exchange) -> None:
        """Bind the programs of a request that was admitted on the connection of `exchange`.

        Raises as `ChainPrograms.bind`, and ServerUnavailable: the connection was lost.
        """

        def fetch(digests: Sequence[str]) -> processing_pb2.Programs:
            wanted = processing_pb2.GetPrograms(digests=digests)
            return exchange(processing_pb2.SessionRequest(get_programs=wanted)).programs

        try:
            self._programs.bind(handle, chain, fetch, self._table.handles.values())
        except LeftToServer:
            handle.programs, handle.programs_on_server = (), True
            (frame,) = add_frames([handle])
            added = exchange(processing_pb2.SessionRequest(add=frame)).added
            check_added(frame, added)
            for failure in added.failures:
                raise from_proto(failure.error) from None
            handle.admitted(added.chains[0], reads_logits=bool(added.reads_logits[0]))
        self._table.has_programs |= bool(handle.programs)
        handle.reads_logits = handle.sends_logits or bool(handle.programs)
