"""`logitport replay`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import orjson
from pydantic import AliasChoices, BaseModel, Field
from pydantic_settings import CliPositionalArg

from logitport.errors import InvalidArgument, LogitportError
from logitport.recording.reader import MAX_MEMORY_BYTES, read_recording
from logitport_server import stubs
from logitport_server.cli.display.replays import content_lines, content_of, replay_lines
from logitport_server.cli.display.tables import show
from logitport_server.cli.processor_file import read_processor
from logitport_server.config import StartupError, UsageError
from logitport_server.config.option import FlagOnly, Metavar
from logitport_server.config.units import Size
from logitport_server.play.token_texts import read_tokenizer

if TYPE_CHECKING:
    from logitport.recording.reader import Recording
    from logitport.testing.replaying.chains import Replacement


class Replay(BaseModel):
    """Count the rows in which another version of a processor would have differed from a recorded one.

    It runs on the recorded histories, in this process. Without --with, the requests of the recording are listed. Exits
    with status 1 where the versions differ, and 2 where they cannot be compared.
    """

    recording: CliPositionalArg[Annotated[Path, Metavar("FILE")]] = Field(
        description="file that a session has recorded, see LOGITPORT_RECORD"
    )
    versions: list[Annotated[str, Metavar("[NAME=]FILE:CLASS")]] = Field(
        [],
        validation_alias=AliasChoices("with"),
        description="another version, such as my.py:New; NAME is the recorded processor that it replaces: its class, "
        "name or digest",
    )
    request: Annotated[str | None, Metavar("ID")] = Field(None, description="only the requests with this id")
    tokenizer: Annotated[Path | None, Metavar("PATH")] = Field(
        None,
        description="tokenizer.json of the recorded model, or its folder: the tokenizer of processors",
    )
    run_payloads: Annotated[bool, FlagOnly] = Field(
        False,
        description="run the code of shipped processors that the recording holds, in this process, without a sandbox: "
        "only for recordings that you trust",
    )
    max_memory: Size = Field(
        MAX_MEMORY_BYTES,
        ge=1 << 20,
        description="memory for the recorded events, with --request for those of its requests",
    )
    as_json: Annotated[bool, FlagOnly] = Field(False, validation_alias=AliasChoices("json"), description="print JSON")

    def cli_cmd(self) -> None:
        """Print the differences, or the requests."""
        try:
            differs = self._compare() if self.versions else self._list()
        except (LogitportError, StartupError) as error:
            raise UsageError(str(error)) from error
        _end(differs=differs)

    def _compare(self) -> bool:
        from logitport.testing.replaying.replay import replay

        stubs.offer()
        recording = self._read()
        if self.tokenizer is not None:
            read_tokenizer(self.tokenizer)  # a file that cannot be read is an error, also if no processor uses it
        versions = [_replacement(one) for one in self.versions]
        result = replay(
            recording,
            versions,
            request_id=self.request,
            tokenizer=self.tokenizer,
            run_payloads=self.run_payloads,
        )
        if not any(request.compared or request.not_compared or request.error for request in result.requests):
            raise InvalidArgument("no step can be compared: no row was recorded")
        if not any(request.compared or request.error for request in result.requests):
            raise InvalidArgument(
                "no step can be compared: the chains read logits, and no logits were recorded; record with a smaller "
                "sample_every"
            )
        if self.as_json:
            _print_json(result.to_json())
        else:
            show(replay_lines(result))
        return result.differs

    def _read(self) -> Recording:
        return read_recording(self.recording, request_id=self.request, max_memory_bytes=self.max_memory)

    def _list(self) -> bool:
        if self.tokenizer is not None:
            raise UsageError("--tokenizer is that of the versions: give --with [NAME=]FILE:CLASS, too")
        if self.run_payloads:
            raise UsageError("--run-payloads is for a comparison: give --with [NAME=]FILE:CLASS, too")
        recording = self._read()
        if self.as_json:
            _print_json(content_of(recording))
        else:
            show(content_lines(recording))
        return False


def _replacement(version: str) -> Replacement:
    from logitport.testing.replaying.chains import Replacement

    name, separator, source = version.rpartition("=")
    if separator and not name:
        raise UsageError(f"--with {version}: write NAME=FILE:CLASS, or FILE:CLASS")
    return Replacement(read_processor(source), name)


def _print_json(content: object) -> None:
    print(orjson.dumps(content, option=orjson.OPT_INDENT_2).decode())  # noqa: T201


def _end(*, differs: bool) -> NoReturn:
    sys.exit(1 if differs else 0)
