"""Sessions in the process of an engine, without a server. Code of others is not accepted."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import logitport_builtins
from logitport import payload
from logitport.errors import InvalidArgument, LimitExceeded, NotFound, PayloadError
from logitport.shipping import serialize
from logitport.system.fair_threads import FairThreads
from logitport_programs.cost import DEFAULT_LIMIT_MS
from logitport_proto import processing_pb2, registry_pb2
from logitport_session.dialects import make_dialect
from logitport_session.engine_session.apply import apply
from logitport_session.engine_session.engine_session import EngineSession
from logitport_session.engine_session.session_frames import SessionFrames
from logitport_session.processor_sources import installed
from logitport_session.processor_sources.installed import Installed
from logitport_session.processor_sources.names import check_name
from logitport_session.processor_sources.programs import load_program
from logitport_session.processor_sources.source import Source, names_no_processor
from logitport_session.requests.loaded_processors import load_trusted
from logitport_session.resources.session_limits import SessionLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future

    from logitport.payload import Payload
    from logitport.shipping.request import ProcessorLike
    from logitport_proto import common_pb2
    from logitport_session.dialects import Dialect
    from logitport_session.trust.principals import Principal

NO_SERVER = (
    "this session runs in the engine's process, without a server, and accepts no code: start `logitport serve "
    "--enable-custom-logit-processor`, and set LOGITPORT_TARGET to its address; or install the class in a package with "
    "the entry point group 'logitport.processors'"
)
# Admissions in the background that run at the same time.
_MAX_ADMISSION_THREADS = 4
# The engine's own requests take this memory. It has no others to protect.
_MAX_MEMORY = 1 << 62
_SUFFIX = ".json"
# A program has at most 4 MiB, and each byte takes two hexadecimal digits. Servers have the same limit by default.
_MAX_FILE_BYTES = 16 << 20


class EmbeddedSessions:
    """The processors and sessions of one process. Thread-safe, but each of its sessions is not.

    Args:
        programs: folder with programs: `team/name.json` is the payload of the program `team/name`. None for no programs
            but the code of installed packages.
        trusted: classes and payloads of shipped processors that may run in this process. No others do.

    Raises:
        InvalidArgument: an installed processor cannot be used, or a file of the folder is no program.
    """

    def __init__(self, programs: Path | None = None, trusted: Sequence[ProcessorLike] = ()) -> None:
        self.installed = Installed(installed.load()).verify()
        self._programs = {} if programs is None else _read_programs(programs)
        self._trusted = dict(map(_with_digest, trusted))
        self._tokenizers: list[str] = []
        # By process: a fork has none of the threads. Not started before the first admission in the background.
        self._threads: dict[int, FairThreads] = {}

    def frames(self) -> SessionFrames:
        """Return a session that is opened by its first frame."""
        return SessionFrames(self._open)

    def list(self) -> list[registry_pb2.ProcessorInfo]:
        """Describe all processors by name, the installed ones first."""
        digests = dict.fromkeys(self._programs[name].digest for name in sorted(self._programs))
        return [self.get(name) for name in (*sorted(self.installed), *digests)]

    def get(self, name: str) -> registry_pb2.ProcessorInfo:
        """Describe an installed processor, or a program by its name or digest. Raises NotFound."""
        if name in self.installed:
            return self.installed.describe(name)
        shipped = self._program(name)
        names = sorted(each for each, other in self._programs.items() if other.digest == shipped.digest)
        return registry_pb2.ProcessorInfo(
            digest=shipped.digest,
            names=names,
            size_bytes=len(shipped.data),
            class_name=shipped.class_name,
            dialect=shipped.dialect,
        )

    def apply(self, message: processing_pb2.ApplyRequest) -> processing_pb2.ApplyResponse:
        """Process logits without a session. Raises LogitportError."""
        return apply(message, partial(self._open, in_background=False))[0]

    def close(self) -> None:
        """End the threads. Sessions that are open cannot admit requests in the background any more."""
        if (threads := self._threads.get(os.getpid())) is not None:
            threads.close()
        logitport_builtins.remove_tokenizers(self._tokenizers)
        self._tokenizers.clear()

    def resolve(self, processor: common_pb2.Processor, principal: Principal, tenant: str) -> Source:  # noqa: ARG002
        """Look up a request's processor. Raises NotFound, InvalidArgument, PayloadError."""
        by = processor.WhichOneof("by")
        if by == "builtin":
            return self.installed.source(processor.builtin)
        if by is None:
            raise names_no_processor()
        check = None if self._trusted else _check_is_program  # the digest decides
        shipped = payload.parse(processor.payload, check) if by == "payload" else self._program(getattr(processor, by))
        if shipped.digest in self._trusted and not shipped.is_program:
            return Source(shipped.digest, payload=shipped)
        _check_is_program(shipped.is_program)
        return Source(shipped.digest, payload=shipped, program=load_program(shipped))

    def load(self, source: Source) -> Dialect:
        """Create an instance of the processor for one session. Raises LimitExceeded."""
        dialect = load_trusted(source, DEFAULT_LIMIT_MS)
        if dialect is None:
            dialect = make_dialect(self._trusted[source.key][1], source.display_name, shipped=False)
        dialect.key = source.key
        return dialect

    def _open(self, opening: processing_pb2.OpenSession, *, in_background: bool = True) -> EngineSession:
        self._add_tokenizer(opening.tokenizer_id)
        submit = self._submit if in_background else None
        return EngineSession(opening, self, self, "cpu", _LIMITS, submit=submit)

    def _submit(self, principal: str, work: Callable[[], None]) -> Future[None]:
        threads = self._threads.get(os.getpid())
        if threads is None:
            made = FairThreads(_MAX_ADMISSION_THREADS, "logitport-admission")
            threads = self._threads.setdefault(os.getpid(), made)
            if threads is not made:  # another session has started them in the meantime
                made.close()
        return threads.submit(principal, work)

    def _add_tokenizer(self, tokenizer_id: str) -> None:
        """Let processors use the tokenizer of the engine's model, if its files are on this machine."""
        if tokenizer_id and tokenizer_id not in self._tokenizers and (path := _files_of(tokenizer_id)) is not None:
            self._tokenizers.append(tokenizer_id)
            logitport_builtins.add_tokenizers({tokenizer_id: path})

    def _program(self, name: str) -> Payload:
        """Find a program of the folder by its name or digest. Raises NotFound."""
        if name in self._trusted:
            return self._trusted[name][0]
        for other, shipped in self._programs.items():
            if name in (other, shipped.digest):
                return shipped
        known = f"programs are {', '.join(sorted(self._programs))}" if self._programs else "there are no programs"
        raise NotFound(f"no processor is called {name!r}: {known}; {NO_SERVER}")


_LIMITS = SessionLimits(max_principal_memory=_MAX_MEMORY)


def _files_of(tokenizer_id: str) -> Path | None:
    """Return the folder or file of a tokenizer: a path, or a name of the Hugging Face hub whose files are cached."""
    path = Path(tokenizer_id)
    if path.exists():
        return path
    with suppress(ImportError, ValueError):  # no such package, or no name of the hub
        from huggingface_hub import try_to_load_from_cache

        file = try_to_load_from_cache(tokenizer_id, "tokenizer.json")
        return Path(file).parent if isinstance(file, str) else None
    return None


def _with_digest(processor: ProcessorLike) -> tuple[str, tuple[Payload, object]]:
    """Return the digest of a trusted processor, its payload, and the object that runs. Raises PayloadError."""
    shipped = payload.parse(processor if isinstance(processor, str) else serialize(processor))
    return shipped.digest, (shipped, payload.loads(shipped) if isinstance(processor, str) else processor)


def _check_is_program(is_program: bool) -> None:
    if not is_program:
        raise PayloadError(NO_SERVER, code=PayloadError.NOT_ALLOWED)


def _read_programs(folder: Path) -> Mapping[str, Payload]:
    """Read the programs of a folder, and verify them. Raises InvalidArgument."""
    if not folder.is_dir():
        raise InvalidArgument(f"{folder} is no folder; name one with programs, or leave it out")
    found = {}
    for file in sorted(folder.rglob(f"*{_SUFFIX}")):
        path = file.relative_to(folder)
        if any(part.startswith(".") for part in path.parts):
            continue  # not a name; a volume of Kubernetes has its files a second time in a folder ..DATE
        try:
            name = path.as_posix().removesuffix(_SUFFIX)
            check_name(name)
            shipped = payload.parse(_read(file), _check_is_program)
            load_program(shipped)
        except (OSError, ValueError, PayloadError, LimitExceeded) as error:
            raise InvalidArgument(f"{file} is no program: {error}") from error
        found[name] = shipped
    return found


def _read(file: Path) -> str:
    """Read a regular file. Raises OSError, ValueError."""
    if not stat.S_ISREG(file.stat().st_mode):  # a named pipe would block
        raise ValueError("it is no regular file")
    with file.open("rb") as opened:
        data = opened.read(_MAX_FILE_BYTES + 1)
    if len(data) > _MAX_FILE_BYTES:
        raise ValueError(f"it has more than {_MAX_FILE_BYTES} bytes")
    return data.decode()
