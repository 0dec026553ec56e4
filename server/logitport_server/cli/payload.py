"""`logitport payload`."""

from __future__ import annotations

import math
import os
import resource
import signal
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from pydantic import BaseModel, Field

from logitport import payload
from logitport.errors import PayloadError
from logitport.payload.signing import DEFAULT_SECONDS, key_id, read_private_key
from logitport_programs.program import Program
from logitport_programs.verifier import verify
from logitport_server.cli import program_text
from logitport_server.cli.display import escape
from logitport_server.cli.processor_file import read_payload
from logitport_server.config.option import Argument, Metavar
from logitport_server.config.units import OrOff, Seconds
from logitport_server.config.values import File, Folder
from logitport_server.lifecycle.start_errors import StartupError
from logitport_server.registry.inspection import inspect_pickle
from logitport_server.registry.trusted_keys import TrustedKeys

if TYPE_CHECKING:
    from logitport.payload import Payload

# A small pickle may expand to more memory than any machine has.
_MAX_MEMORY = 4 << 30


class Keygen(BaseModel):
    """Create a key pair for signing payloads: PATH is the private key, PATH.pub the public key for --trusted-keys."""

    path: Argument[Path] = Field(description="file of the private key; it must not exist yet")

    def run(self) -> None:
        key = Ed25519PrivateKey.generate()
        public = self.path.with_name(self.path.name + ".pub")
        _write(self.path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), 0o600)
        _write(public, key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo), 0o644)
        print(f"{self.path} and {public}: key {key_id(key.public_key())}")  # noqa: T201


class Sign(BaseModel):
    """Sign a payload and print it. Servers with --trusted-keys require a signature."""

    payload: Argument[Annotated[str, Metavar("FILE")]] = Field(
        description="file of a payload, the result of CustomLogitProcessor.to_str(), or of a program; - for stdin"
    )
    key: File = Field(description="file of the private key, from `logitport payload keygen`")
    name: str = Field(
        "",
        description="name that the payload may be registered under; without it, no name is allowed",
    )
    expires: Seconds = Field(DEFAULT_SECONDS, gt=0, description="how long the signature is valid, for example 30d")

    def run(self) -> None:
        unsigned, seconds = read_payload(self.payload), int(self.expires)
        print(payload.sign(unsigned, read_private_key(self.key), name=self.name, seconds=seconds))  # noqa: T201


class Inspect(BaseModel):
    """Show what unpickling a payload would import and do, without running it; or the values of a program."""

    payload: Argument[Annotated[str, Metavar("FILE")]] = Field(
        description="file of a payload, or of the canonical bytes of a program; - for stdin"
    )
    trusted_keys: OrOff[Folder] = Field(None, description="folder of public keys (*.pub) to check the signature with")
    cpu_seconds: Seconds = Field(20.0, ge=1, le=3600, description="CPU time limit of the analysis")

    def run(self) -> None:
        keys = TrustedKeys(self.trusted_keys) if self.trusted_keys is not None else None
        serialized = read_payload(self.payload)
        _limit(math.ceil(self.cpu_seconds))
        shipped = payload.parse(serialized)
        if shipped.is_program:
            _report_program(shipped, keys)
        else:
            _report_pickle(shipped, keys)


def _report_program(shipped: Payload, keys: TrustedKeys | None) -> None:
    verified = verify(Program.from_bytes(shipped.data))
    program = verified.program
    _print("program", program.name or "(unnamed)")
    _print("digest", program.digest)
    _print("size", f"{len(shipped.data)} bytes")
    _print("signature", _signature(shipped, keys))
    _print("window", f"the last {program.window} ids of each history" if program.window else "none")
    _print("A request may set", *(program_text.parameters(verified) if program.parameters else ["(nothing)"]))
    _print("Values, each computed from earlier ones; the last one is the result", *program_text.values(verified))
    _print("The program is verified: it reads only these inputs, and its rows do not affect each other")
    _print("It may set logits to any value: this report does not prove that the processor is harmless")


def _report_pickle(shipped: Payload, keys: TrustedKeys | None) -> None:
    found = inspect_pickle(shipped.data)
    _print("digest", shipped.digest)
    _print("class", f"{shipped.class_name or '(unknown)'}, dialect {shipped.dialect or '(unknown)'}")
    _print("made with", f"Python {shipped.python or '(unknown)'}, dill {shipped.dill or '(unknown)'}")
    _print("size", f"{len(shipped.data)} bytes")
    _print("signature", _signature(shipped, keys))
    _print("Unpickling imports", *found.imports)
    _print("Unpickling does", *found.statements)
    carried = [
        line
        for function in found.functions
        for line in (f"{function.name}: {', '.join(function.uses) or '(no names)'}", *map(repr, function.strings))
    ]
    _print("It contains functions, which run when the processor is used; the names and strings in their code", *carried)
    _print("Code can compute names at run time: this report does not prove that the processor is harmless")


def _print(title: str, *lines: str) -> None:
    """Print "title: line" for a lower-case title, else the lines below a heading. Control characters are escaped."""
    clean = list(map(escape, lines))
    text = f": {clean[0]}" if title.islower() else "".join(f"\n    {line}" for line in clean)
    print(title + text)  # noqa: T201


def _signature(shipped: Payload, keys: TrustedKeys | None) -> str:
    signature = shipped.signature
    if signature is None:
        return "none"
    ends = datetime.fromtimestamp(signature.expires, timezone.utc)
    description = f"key {signature.key}, for {signature.name or 'no name'}, until {ends:%Y-%m-%d %H:%M:%S} UTC"
    if keys is None:
        expired = " (expired)" if signature.expires <= time.time() else ""
        return f"{description}{expired}; not checked: give --trusted-keys"
    try:
        keys.check(shipped)
    except PayloadError as error:
        return f"{description}; REFUSED: {error}"
    return f"{description}; valid"


def _limit(cpu_seconds: int) -> None:
    def stop(*_: object) -> None:
        raise PayloadError(f"the analysis took more than {cpu_seconds} s of CPU time (--cpu-seconds); do not run it")

    signal.signal(signal.SIGXCPU, stop)
    for kind, limit in ((resource.RLIMIT_AS, _MAX_MEMORY), (resource.RLIMIT_CPU, cpu_seconds)):
        _, hard = resource.getrlimit(kind)
        resource.setrlimit(kind, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def _write(path: Path, content: bytes, mode: int) -> None:
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
    except OSError as error:
        raise StartupError(f"cannot write {path}: {error.strerror}; choose another path") from error
