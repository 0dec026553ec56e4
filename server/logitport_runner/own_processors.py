"""The processors of a test: its own classes, instances and functions, which run without being serialized."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from logitport import dialects, payload
from logitport.shipping.request import ProcessorRef, Request, name_processor
from logitport_programs.authoring.processor import TensorProcessor
from logitport_programs.program import Program
from logitport_proto import common_pb2

if TYPE_CHECKING:
    from collections.abc import Mapping

    from logitport_session.dialects import Dialect


class OwnProcessors:
    """Names the processors of requests. A test's own processors join the installed ones.

    Args:
        installed: the installed processors, by name.
        shipped: whether to serialize the test's own processors.

    Attributes:
        installed: those, and the test's own.
    """

    def __init__(self, installed: Mapping[str, Any], *, shipped: bool) -> None:
        self.installed: dict[str, Any] = dict(installed)
        self._shipped = shipped
        # By identity, with the processor itself, so that no other object gets its identity.
        self._names: dict[int, tuple[str, object]] = {}
        self._display_names: dict[str, str] = {}

    def to_proto(self, request: Request) -> common_pb2.Request:
        """Convert a request to a message.

        Raises:
            PayloadError: a processor is none, or has state that a server would not get; or, if shipped, cannot be
                serialized.
            InvalidArgument: as `Request.to_proto`.
        """
        named = [(self._named(processor), params) for processor, params in request.checked_processors()]
        references = [(one.builtin or one.name or one.digest or "payload", params) for one, params in named]
        message = Request(
            request.prompt_token_ids,
            request.output_token_ids,
            references,
            request.request_id,
            request.sampling_params,
            request.tenant,
            request.on_error,
        ).to_proto()
        for call, (processor, _) in zip(message.processors, named, strict=True):
            call.processor.CopyFrom(processor)
        return message

    def adapt(self, name: str, dialect: Dialect) -> Dialect:
        """Give errors of a test's own processor the class and the traceback of a shipped one's."""
        if name in self._display_names:
            dialect.shipped, dialect.name = True, self._display_names[name]
        return dialect

    def _named(self, processor: Any) -> common_pb2.Processor:
        if not self._is_own(processor):
            return name_processor(processor)
        if self._shipped:
            return common_pb2.Processor(payload=payload.dumps(processor))
        root, _ = payload.root_of(processor)
        if isinstance(root, type) and issubclass(root, TensorProcessor):
            named = name_processor(root)
            if payload.parse(named.payload).is_program:
                return named
        return common_pb2.Processor(builtin=self._installed_name(processor, root))

    def _is_own(self, processor: Any) -> bool:
        """Whether the processor is code of the test: no name, string, reference, program or built-in."""
        if isinstance(processor, (str, ProcessorRef, Program)):
            return False
        return not vars(processor if isinstance(processor, type) else type(processor)).get("builtin_name")

    def _installed_name(self, processor: Any, root: Any) -> str:
        """Install a processor, and return its name. A server would get `root`."""
        known = self._names.get(id(processor))
        if known is not None:
            return known[0]
        author = dialects.author_of(root)
        display_name = author.__qualname__.rpartition(".<locals>.")[2]
        name, number = f"{author.__module__}:{display_name}", 1
        while name in self.installed:
            number += 1
            name = f"{author.__module__}:{display_name}#{number}"
        self.installed[name] = root
        self._names[id(processor)] = name, processor
        self._display_names[name] = display_name
        return name
