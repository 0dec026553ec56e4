"""The programs of a session's requests that its engine runs on its own logits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from logitport.errors import LimitExceeded, NotFound

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from logitport.payload import Signature
    from logitport_programs.program import Program
    from logitport_proto import processing_pb2
    from logitport_session.requests.active_request import ActiveRequest

# A field of a message has at most this many bytes besides its content.
_MAX_FIELD_BYTES = 16


def describe_chain(request: ActiveRequest, chain: processing_pb2.AdmittedChain) -> None:
    """Write the processors of an admitted request, and the programs of them that the engine runs."""
    chain.processors.extend(entry.dialect.key for entry in request.chain)
    if request.reads_logits:  # otherwise it does
        chain.follows_from_history = all(entry.dialect.follows_from_history for entry in request.chain)
    chain.only_denies = all(entry.only_denies for entry in request.chain)
    if request.programs_before:
        programs = (entry.dialect.engine_program for entry in request.chain)
        chain.programs.extend("" if program is None else program.digest for program in programs)


def write_programs(
    requests: Iterable[ActiveRequest], digests: Sequence[str], max_bytes: int, reply: processing_pb2.Programs
) -> None:
    """Write the canonical bytes and the signatures of programs, in the order of their digests.

    `max_bytes` limits the reply.

    Raises:
        NotFound: the engine runs no program with one of the digests.
        LimitExceeded: the programs do not fit into one reply.
    """
    found: dict[str, tuple[Program, Signature | None]] = {}
    for request in requests:
        for entry in request.chain if request.programs_before else ():
            program, signature = entry.dialect.engine_program, entry.dialect.signature
            # Requests may name one program with and without a signature.
            if program is not None and (signature is not None or program.digest not in found):
                found[program.digest] = program, signature
    if unknown := [digest for digest in digests if digest not in found]:
        raise NotFound(
            f"the engine runs no program {unknown[0]!r:.100} for a request of this session; send digests of "
            "AdmittedChain.programs, while the session has a request with them"
        )
    serialized = {digest: _serialized(*found[digest]) for digest in {*digests}}
    size_bytes = sum(len(part) + _MAX_FIELD_BYTES for digest in digests for part in serialized[digest])
    if size_bytes > max_bytes - _MAX_FIELD_BYTES:
        raise LimitExceeded(
            f"{len(digests)} programs have {size_bytes} bytes; a reply has at most {max_bytes}: request fewer in one "
            "frame, or raise --max-message-bytes"
        )
    for digest in digests:
        reply.programs.append(serialized[digest][0])
        reply.signatures.append(serialized[digest][1])


def _serialized(program: Program, signature: Signature | None) -> tuple[bytes, bytes]:
    return program.to_bytes(), b"" if signature is None else orjson.dumps(signature.to_json())
