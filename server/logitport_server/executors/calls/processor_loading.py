"""One processor in one worker: loaded in the worker's process, and again after each restart of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from logitport_server.worker import messages
from logitport_server.worker.shown_source import encode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from logitport_server.executors.calls.worker import Worker
    from logitport_server.executors.worker_processes.worker_process import WorkerProcess
    from logitport_session.processor_sources.source import Source

_Reply = TypeVar("_Reply")


class Loads:
    """What workers have stated about one processor when they loaded it.

    Attributes:
        last: the reply to the last load.
    """

    def __init__(self) -> None:
        self.last = messages.LoadReply(reads_logits=False)
        self._kind: tuple[bool, bool] | None = None

    def add(self, reply: messages.LoadReply) -> None:
        """Record a reply. Raises ValueError if the processor was of another kind before."""
        kind = reply.reads_logits, reply.takes_drafts
        if self._kind not in (None, kind):
            raise ValueError(f"reads_logits and takes_drafts are {kind}, they were {self._kind}")
        self.last, self._kind = reply, kind


class WorkerLoader:
    """Loads a processor in a worker, and releases it there when nothing uses this object any more.

    All methods need the worker's lock.

    Args:
        number: the processor's number in workers.
        uses_gpu: whether to prepare the GPU for the processor, if the process can use it.

    Attributes:
        process: the process that has loaded the processor, or will have when it has answered; None if none has.
        loading: a new object for each load. It identifies the load that states belong to.
    """

    def __init__(self, source: Source, number: int, worker: Worker, loads: Loads, *, uses_gpu: bool = True) -> None:
        self.worker = worker
        self.uses_gpu = uses_gpu
        self.process: WorkerProcess | None = None
        self.loading = object()
        self._kept = False
        self._source = source
        self._name = source.display_name
        self._number = number
        self._loads = loads

    def post(
        self, on_error: Callable[[BaseException], object], seconds: float, *, at_admission: bool = False
    ) -> WorkerProcess:
        """Return the worker's process. If it lacks the processor, post the call that loads it.

        Raises ProcessorFailed, and what `Worker.process` and `Worker.post` raise.
        """
        source, worker = self._source, self.worker
        assert source.payload is not None  # noqa: S101 - an installed processor has no worker
        worker.quarantine.check(worker.domain, source.key, self._name)
        process = worker.process(seconds)
        if process is not self.process:
            worker.post(
                source,
                self._call(process),
                [source.payload.data, encode(source.shown_source)],
                messages.LoadReply,
                lambda reply, _: self._loaded(process, reply),
                on_error,
                at_admission=at_admission,
            )
            process.kept.discard(source.key)  # this call takes it
            self.process, self.loading = process, object()
        return process

    def load(self, seconds: float, *, at_admission: bool = True) -> None:
        """Load the processor if the process lacks it, within these seconds. Raises what `Worker.exchange` raises."""
        errors: list[BaseException] = []
        self.post(errors.append, seconds, at_admission=at_admission)
        self.worker.drain(seconds)
        if errors:
            self.process = None
            raise errors[0]

    def exchange(
        self,
        call: messages.WorkerCall,
        columns: Sequence[bytes],
        expected: type[_Reply],
        seconds: float,
        *,
        at_admission: bool = True,
    ) -> _Reply:
        """Load the processor if the process lacks it, and make a call, both within these seconds.

        Raises what `Worker.exchange` raises.
        """
        errors: list[BaseException] = []
        self.post(errors.append, seconds, at_admission=at_admission)
        try:
            return self.worker.exchange(self._source, call, columns, expected, seconds, at_admission=at_admission)
        except BaseException:
            if errors:  # the call has failed because of them
                self.process = None
                raise errors[0] from None
            raise

    def __del__(self) -> None:
        if self.process is not None:
            self.worker.release(self._number, None)
            if self._kept:
                self.process.kept.add(self._source.key)

    def _loaded(self, process: WorkerProcess, reply: messages.LoadReply) -> None:
        self._kept = reply.kept
        self._loads.add(reply)
        gpu = self.worker.gpu
        if gpu is not None and process.uses_gpu and reply.gpu_error:
            gpu.disable(self.worker.domain, process, reply.gpu_error)

    def _call(self, process: WorkerProcess) -> messages.LoadProcessor:
        gpu, shipped = self.worker.gpu, self._source.payload
        assert shipped is not None  # noqa: S101 - as above
        with_gpu = self.uses_gpu and gpu is not None and process.uses_gpu
        return messages.LoadProcessor(
            processor=self._number,
            name=self._name,
            digest=shipped.digest,
            python=shipped.python,
            dill=shipped.dill,
            gpu=(str(gpu.cuda.device), gpu.cuda.uuid.hex()) if with_gpu and gpu is not None else None,
        )
