"""The requests of SGLang that a session holds: who has come, who has ended, and what joined a history since."""

from __future__ import annotations

import itertools
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from logitport.errors import StateLost
from logitport.integrations.common.chains import chain_of
from logitport.request import Request

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from logitport.errors import LogitportError
    from logitport.integrations.common.history_batch import Chain
    from logitport.session.frames import Handle
    from logitport.session.session import Session


@dataclass
class TrackedRequest:
    """One request, from its first step to its end, however often SGLang takes it out of its batch between.

    Attributes:
        req: SGLang's own, which dies when SGLang drops it.
        chain: its processors.
        handle: the session's; None before it is admitted, and after the session is lost.
        lost: why it cannot go on in another session.
    """

    req: weakref.ref[Any]
    chain: Chain
    handle: Handle | None = None
    lost: StateLost | None = None

    def admitted(self, session: Session) -> Handle:
        """Its handle; it is admitted, with its whole history, if it is new to the session.

        Raises:
            StateLost: its processors had state that a session which is gone has taken along.
            LogitportError: as `Session.add`.
        """
        if self.lost is not None:
            raise self.lost
        if self.handle is None:
            req: Any = self.req()
            self.handle = session.add(
                Request(prompt_of(req), req.output_ids, processors=self.chain, request_id=str(req.rid))
            )
        return self.handle


class TrackedRequests:
    """Those that have come and not ended.

    Args:
        default: the chain of requests that ask for nothing.
    """

    def __init__(self, default: Chain) -> None:
        self._default = default
        self._tracked: dict[int, TrackedRequest] = {}

    def follow(self, req: Any, custom_params: Mapping[str, Any]) -> TrackedRequest:
        """The request as it is followed; what it asks for is read once. Raises InvalidParams."""
        follow = self._tracked.get(id(req))
        if follow is None or follow.req() is not req:
            follow = self._tracked[id(req)] = TrackedRequest(weakref.ref(req), chain_of(custom_params, self._default))
        return follow

    def drop_ended(self, session: Session | None) -> None:
        """Have the session forget requests that have ended, or that SGLang dropped. Raises as `Session.remove`."""
        for key, follow in list(self._tracked.items()):
            req = follow.req()
            if req is None or req.finished():
                del self._tracked[key]
                if session is not None and follow.handle is not None:
                    session.remove(follow.handle)

    def forget_session(self, error: LogitportError) -> None:
        """The session is gone. Those whose state follows from their history can be admitted to the next one."""
        for follow in self._tracked.values():
            if follow.handle is not None and follow.handle.processed:
                follow.lost = StateLost(f"what its processors remembered went with the session: {error}")
            follow.handle = None


def prompt_of(req: Any) -> Sequence[int]:
    """The prompt's ids as the tokenizer made them; in `origin_input_ids` SGLang puts hashes in the place of images."""
    ids: Sequence[int] = req.origin_input_ids_unpadded
    return ids if len(ids) else req.origin_input_ids


def new_ids(req: Any, handle: Handle, session: Session) -> Sequence[int]:
    """What was sampled since the request's last step. The session's history is cut back if SGLang's was.

    SGLang keeps the output of a request that it retracts, but starts over with one that has input embeddings.
    """
    history, output = handle.history, req.output_ids
    told = history.length - history.prompt_length
    if told and (len(output) < told or output[told - 1] != history.at(history.length - 1)):
        pairs = zip(history.output_token_ids.tolist(), output, strict=False)
        told = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        session.rewind(handle, history.prompt_length + told)
    ids: Sequence[int] = output[told:]
    return ids
