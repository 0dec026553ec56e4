"""`logitport inspect`."""

from __future__ import annotations

import resource
import signal
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, Field
from pydantic_settings import CliPositionalArg

from logitport import payload
from logitport.errors import MalformedPayload, SignatureRefused
from logitport_server.cli.payload_file import read_payload
from logitport_server.registry.inspection import inspect_pickle
from logitport_server.registry.trusted_keys import TrustedKeys

if TYPE_CHECKING:
    from logitport.payload import Payload

# A small pickle may unfold to more than any machine holds.
_MAX_MEMORY = 4 << 30


class Inspect(BaseModel):
    """Tell what a payload would import and do, without running any of it."""

    payload: CliPositionalArg[str] = Field(description="file of a payload; - for stdin")
    trusted_keys: Path | None = Field(None, description="folder of public keys to check a signature with")
    cpu_seconds: int = Field(20, ge=1, description="when to give up a payload that unfolds without end, in seconds")

    def cli_cmd(self) -> None:
        """Print the report."""
        keys = TrustedKeys(self.trusted_keys) if self.trusted_keys is not None else None
        serialized = read_payload(self.payload)
        _limit(self.cpu_seconds)
        shipped = payload.parse(serialized)
        found = inspect_pickle(shipped.data)
        _tell("digest", shipped.digest)
        _tell("called", f"{shipped.class_name or '(not said)'}, of the dialect {shipped.dialect or '(not said)'}")
        _tell("made with", f"Python {shipped.python or '(not said)'}, dill {shipped.dill or '(not said)'}")
        _tell("size", f"{len(shipped.data)} bytes")
        _tell("signature", _signature(shipped, keys))
        _tell("Unpickling imports", *found.imports)
        _tell("Unpickling does", *found.statements)
        carried = [
            line
            for function in found.functions
            for line in (f"{function.name}: {', '.join(function.uses) or '(no names)'}", *map(repr, function.strings))
        ]
        _tell("It carries functions, which using it calls; the names and strings in their code", *carried)
        _tell("A processor is code, and code can make up names as it runs: this does not prove that one is harmless")


def _tell(what: str, *lines: str) -> None:
    """One line, or several below a heading; without what would do something to a terminal."""
    clean = ["".join(char if char.isprintable() else repr(char)[1:-1] for char in line) for line in lines]
    text = f": {clean[0]}" if what.islower() else "".join(f"\n    {line}" for line in clean)
    print(what + text)  # noqa: T201


def _signature(shipped: Payload, keys: TrustedKeys | None) -> str:
    signature = shipped.signature
    if signature is None:
        return "none"
    ends = datetime.fromtimestamp(signature.expires, timezone.utc)
    told = f"key {signature.key}, for {signature.name or 'no name'}, until {ends:%Y-%m-%d %H:%M:%S} UTC"
    if keys is None:
        return f"{told}{' (expired)' if signature.expires <= time.time() else ''}; not checked: give --trusted-keys"
    try:
        keys.check(shipped)
    except SignatureRefused as error:
        return f"{told}; REFUSED: {error}"
    return f"{told}; valid"


def _limit(cpu_seconds: int) -> None:
    def stop(*_: object) -> None:
        raise MalformedPayload(f"it takes more than {cpu_seconds} s of CPU to follow the pickle; do not run it")

    signal.signal(signal.SIGXCPU, stop)
    for kind, most in ((resource.RLIMIT_AS, _MAX_MEMORY), (resource.RLIMIT_CPU, cpu_seconds)):
        _, hard = resource.getrlimit(kind)
        resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
