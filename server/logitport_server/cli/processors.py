"""`logitport processors`."""

from __future__ import annotations

import sys
import time
from contextlib import redirect_stdout
from dataclasses import asdict
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from logitport_server.cli.display import NOTHING, Column, age, escape, fields, number, show, size
from logitport_server.cli.servers import JsonCommand, ServerResult, ServersCommand, TableCommand, end, known, print_json
from logitport_server.config.option import Argument, Flag, Metavar
from logitport_server.config.units import OrOff
from logitport_server.config.values import File

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rich.text import Text

    from logitport.client.server_client import ServerClient
    from logitport.shipping.request import ProcessorRef

_DIGEST_LENGTH = 12
# Time for a payload of megabytes, and for its verification.
_REGISTER_SECONDS = 60.0


def _state(ref: ProcessorRef) -> str:
    if ref.quarantined:
        return "quarantined"
    return "installed" if ref.builtin else "registered"


_COLUMNS = (
    Column("NAME", lambda ref: ",".join(ref.names), max_cells=120),
    Column("CLASS", "class_name"),
    Column("DIALECT", "dialect"),
    Column("DIGEST", lambda ref: ref.digest[:_DIGEST_LENGTH]),
    Column("OWNER", "owner"),
    Column("STATE", _state),
    Column("AGE", lambda ref: None if ref.builtin else age(max(0.0, time.time() - ref.registered_at))),
)
_WIDE_COLUMNS = (
    *_COLUMNS[:3],
    Column("DIGEST", "digest", max_cells=64),
    *_COLUMNS[4:],
    Column("SHARED", lambda ref: "yes" if ref.shared else "no"),
    Column("PYTHON", "python"),
    number("SIZE", lambda ref: None if ref.builtin else size(ref.size_bytes)),
)
_NAME = Field(description="a name or a digest")


class ListProcessors(TableCommand):
    """List the processors of each server: installed ones, then registered ones that the caller may see.

    With the scope "admin", those of all owners. The token is read from LOGITPORT_TOKEN.
    """

    registered: Annotated[bool, Flag("--registered")] = Field(False, description="leave out those that are installed")

    def run(self) -> None:
        answers = self.call(lambda server: server.processors())
        found = [
            (answer.server, ref)
            for answer in answers
            for ref in answer.value or ()
            if not (self.registered and ref.builtin)
        ]
        if self.as_json:
            print_json([_described(server, ref) for server, ref in found])
        else:
            self.show(_WIDE_COLUMNS if self.wide else _COLUMNS, found, answers)
        end(answers)


class GetProcessor(JsonCommand):
    """Show one processor of each server. The token is read from LOGITPORT_TOKEN."""

    name: Argument[str] = _NAME

    def run(self) -> None:
        answers = self.call(lambda server: server.processor(self.name))
        _print_each(answers, as_json=self.as_json)
        end(answers)


class DeleteProcessor(JsonCommand):
    """Delete a name, or a digest with all its names, at each server. Requests that run continue to use the processor.

    Servers that share a store delete it once. Needs the scope "register", or "admin" for a processor of another owner.
    The token is read from LOGITPORT_TOKEN.
    """

    name: Argument[str] = _NAME

    def run(self) -> None:
        answers = known(self.call(lambda server: server.delete(self.name)))
        done = [answer for answer in answers if answer.error is None]
        if self.as_json:
            print_json([{"server": answer.server, "names": list(answer.value)} for answer in done])
        else:
            named = ((answer.server, ", ".join(answer.value) or self.name) for answer in done)
            show(fields((f"deleted at {server}", names) for server, names in named))
        end(answers)


class RegisterProcessor(JsonCommand):
    """Register a class of a Python file, or a payload, at each server.

    A class that only computes with tensors is registered as a program; for that its code is run here. Needs the scope
    "register". The token is read from LOGITPORT_TOKEN.
    """

    source: Argument[Annotated[str, Metavar("FILE:CLASS")]] = Field(
        description="a Python file and the name of its class or function, or the file of a payload; - for a payload "
        "from stdin"
    )
    name: str = Field("", description="name to bind, namespace/name[:tag]")
    replace: Annotated[bool, Flag("--replace")] = Field(
        False, description="bind the name even if it is bound to another processor"
    )
    shared: Annotated[bool, Flag("--shared")] = Field(
        False, description="allow all callers to use it, not only its owner"
    )
    sign_key: OrOff[File] = Field(
        None, description="private key to sign it with, from `logitport payload keygen`, for the name and 30 days"
    )

    def run(self) -> None:
        from logitport_server.cli.processor_file import read_processor

        # The author's code may print, also when it is traced. The output is the processor.
        with redirect_stdout(sys.stderr):
            processor = read_processor(self.source)
            answers = self._register(processor)
        _print_each(answers, as_json=self.as_json)
        end(answers)

    def _register(self, processor: Any) -> list[ServerResult]:
        def register(server: ServerClient) -> ProcessorRef:
            return server.register(
                processor, name=self.name, replace=self.replace, shared=self.shared, signing_key=self.sign_key
            )

        return self.call(register, _REGISTER_SECONDS)


class Unquarantine(ServersCommand):
    """Lift the quarantine of a processor at each server, so that it is called again.

    Needs the scope "admin". The token is read from LOGITPORT_TOKEN.
    """

    name: Argument[str] = _NAME

    def run(self) -> None:
        answers = known(self.call(lambda server: server.unquarantine(self.name)))
        for answer in answers:
            if answer.error is None:
                processor = answer.value.processor
                name = ", ".join(processor.names) or processor.display_name
                where = f" at {answer.server}" if len(answers) > 1 else ""
                lifted, none = f"lifted the quarantine of {name}", f"{name} is not quarantined"
                print(escape(f"{lifted if answer.value.was_quarantined else none}{where}"))  # noqa: T201
        end(answers)


def _print_each(answers: Iterable[ServerResult], *, as_json: bool) -> None:
    """Print one processor of each server."""
    found = [(answer.server, answer.value) for answer in answers if answer.error is None]
    if as_json:
        print_json([_described(server, ref) for server, ref in found])
        return
    for index, (server, ref) in enumerate(found):
        if index:
            print()  # noqa: T201
        show(_fields(server, ref))


def _described(server: str, ref: ProcessorRef) -> dict[str, Any]:
    """Return the keys and values of a processor, for JSON."""
    return {"server": server, **asdict(ref)}


def _fields(server: str, ref: ProcessorRef) -> Iterator[Text]:
    registered = datetime.fromtimestamp(ref.registered_at, timezone.utc)
    pairs = [
        ("server", server),
        ("names", ", ".join(ref.names) or NOTHING),
        ("class", ref.class_name or NOTHING),
        ("dialect", ref.dialect or NOTHING),
        ("state", _state(ref)),
    ]
    if not ref.builtin:
        pairs += [
            ("digest", ref.digest),
            ("owner", ref.owner or NOTHING),
            ("shared", "yes" if ref.shared else "no"),
            ("python", ref.python or NOTHING),
            ("size", size(ref.size_bytes)),
            ("registered", f"{registered:%Y-%m-%d %H:%M:%S} UTC"),
        ]
    if ref.quarantined:
        pairs.append(("reason", ref.quarantined))
    if ref.not_lifted:
        pairs.append(("no program", ref.not_lifted))
    return fields(pairs)
