"""Commands that call each server of a target, and how they print the results."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

from pydantic import BaseModel, Field

from logitport.errors import InvalidArgument, LogitportError, NotFound, escaped
from logitport.servers.connection import Tls
from logitport_server.cli.advice import with_flags
from logitport_server.cli.display import Column, lines_of, row_of, show
from logitport_server.config.option import Argument, Flag, Metavar
from logitport_server.config.units import OrOff
from logitport_server.config.values import File
from logitport_server.lifecycle.start_errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from logitport.client import Client
    from logitport.client.server_client import ServerClient

_T = TypeVar("_T")

# A server that is alive answers in milliseconds.
_TIMEOUT_SECONDS = 10.0
_MAX_THREADS = 16


class ServerResult(NamedTuple):
    """The result of a call at one server, None after an error; or the error."""

    server: str
    value: Any
    error: LogitportError | None

    @property
    def reason(self) -> str:
        """The text of the error, with this command's flags, or ""."""
        return "" if self.error is None else with_flags(str(self.error))


class ServersCommand(BaseModel):
    """A command that calls each server of a target. The token is read from LOGITPORT_TOKEN."""

    target: Argument[str] = Field(
        description="the server, HOST:PORT or unix:PATH, or several: separated by commas, dns:///HOST:PORT, or "
        "file:PATH or the URL of a document with addresses"
    )
    tls_ca: OrOff[File] = Field(
        None, description="PEM certificates of the authorities for the server's certificate; enables TLS"
    )
    tls_cert: OrOff[File] = Field(None, description="PEM client certificate, if the server requires one")
    tls_key: OrOff[File] = Field(None, description="PEM private key of the client certificate")
    tls_server_name: Annotated[str, Metavar("NAME")] = Field(
        "", description="name in the server's certificate, if it is not the host of the address; enables TLS"
    )

    def addresses(self) -> str | list[str]:
        """The target, as the client reads it."""
        return self.target

    def client(self, timeout: float = _TIMEOUT_SECONDS) -> Client:
        """Make a client of the servers. Raises UsageError for a target that is none."""
        from logitport.client import Client

        settings = (self.tls_ca, self.tls_cert, self.tls_key, self.tls_server_name)
        try:
            return Client(self.addresses(), tls=Tls(*settings) if any(settings) else None, timeout=timeout)
        except InvalidArgument as error:
            raise UsageError(with_flags(str(error))) from error

    def call(self, work: Callable[[ServerClient], _T], timeout: float = _TIMEOUT_SECONDS) -> list[ServerResult]:
        """Do the work at each server, at the same time. Returns the answers in the order of the servers."""
        with self.client(timeout) as client:
            return call_each(client.servers(), work)


class JsonCommand(ServersCommand):
    """A command that prints texts, or JSON."""

    as_json: Annotated[bool, Flag("--json")] = Field(False, description="print JSON")


class TableCommand(JsonCommand):
    """A command that prints a table, or JSON."""

    wide: Annotated[bool, Flag("--wide")] = Field(False, description="print more columns")

    def show(
        self, columns: Sequence[Column], items: Iterable[tuple[str, Any]], answers: Sequence[ServerResult]
    ) -> None:
        """Print a table of (server, object), unless no server has answered. With several, it has a column SERVER."""
        if all(answer.error is not None for answer in answers):
            return
        rows = ((server, *row_of(columns, item)) for server, item in items)
        if len(answers) > 1:
            show(lines_of((Column("SERVER"), *columns), rows))
        else:
            show(lines_of(columns, (cells for _, *cells in rows)))


def call_each(servers: Sequence[ServerClient], work: Callable[[ServerClient], _T]) -> list[ServerResult]:
    """Do the work at each of the servers, at the same time. Returns the answers in their order."""

    def answer(server: ServerClient) -> ServerResult:
        try:
            return ServerResult(server.target, work(server), None)
        except LogitportError as error:
            return ServerResult(server.target, None, error)

    threads = ThreadPoolExecutor(min(_MAX_THREADS, len(servers)))
    try:
        return list(threads.map(answer, servers))
    finally:  # after SIGINT, calls end when the client is closed
        threads.shutdown(wait=False, cancel_futures=True)


def known(answers: list[ServerResult]) -> list[ServerResult]:
    """Leave out servers that do not know a processor, if another one does: they may share the store that it was in."""
    if any(answer.error is None for answer in answers):
        return [answer for answer in answers if not isinstance(answer.error, NotFound)]
    return answers


def print_json(value: object) -> None:
    """Print a value. Characters beyond ASCII are escaped, because terminals obey some of them."""
    print(json.dumps(value, indent=2))  # noqa: T201


def end(answers: Iterable[ServerResult]) -> None:
    """Print the errors, and exit with status 1 if there are any."""
    answers = list(answers)
    failed = [answer for answer in answers if answer.error is not None]
    for answer in failed:
        where = f"{answer.server}: " if len(answers) > 1 and answer.server not in answer.reason else ""
        print(f"logitport: {where}{escaped(answer.reason)}", file=sys.stderr)  # noqa: T201
    if failed:
        sys.exit(1)
