"""What a worker does: answer one frame after the other, until the server closes the connection."""

from __future__ import annotations

import mmap
import os
import socket
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from logitport import dialects, payload
from logitport.core.edits import Edits
from logitport.core.history import History
from logitport.errors import LoadFailed, LogitportError, to_proto
from logitport_server.dialects import RequestContext, failures, speak
from logitport_server.registry.loader import Loader
from logitport_server.worker import frames
from logitport_server.worker.hosted import Hosted

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from logitport.core.cuda_ipc import Cuda

    Reply = tuple[dict[str, Any], Sequence[bytes]]

_MOST_PROCESSORS = 128


def serve(connection: socket.socket) -> None:
    """Answer frames."""
    worker, own = _Worker(), os.getpid()
    descriptors: list[int] = []

    def receive(most: int) -> bytes:
        octets, came, _, _ = socket.recv_fds(connection, most, 1)
        descriptors.extend(came)
        if not octets:
            raise EOFError
        return octets

    while True:
        try:
            header, columns = frames.read(receive, frames.LONGEST_BODY)
        except EOFError:
            return
        reply, answer = worker.answer(header, columns, descriptors)
        if os.getpid() != own:  # a processor has forked; there is one worker
            os._exit(1)
        descriptors.clear()
        connection.sendall(frames.pack({**reply, "call": header["call"]}, answer))


class _Worker:
    def __init__(self) -> None:
        self._loader = Loader(_MOST_PROCESSORS)
        self._hosted: dict[int, Hosted] = {}
        self._cuda: Cuda | None = None

    def answer(self, header: dict[str, Any], columns: Sequence[memoryview], descriptors: Sequence[int]) -> Reply:
        """The reply to a frame; an error of a processor is a reply, too.

        Raises:
            CudaError: what was done has broken CUDA for this process, which is to end.
        """
        reply = self._answer(header, columns, descriptors)
        if self._cuda is not None:
            self._cuda.synchronize()  # the server takes it that all work on the logits is done
        return reply

    def _answer(self, header: dict[str, Any], columns: Sequence[memoryview], descriptors: Sequence[int]) -> Reply:
        for number, state in header.get("gone", ()):
            if state is None:
                self._hosted.pop(number, None)
            elif number in self._hosted:
                self._hosted[number].forget(state)
        do = {"host": self._host, "validate": self._validate, "start": self._start}
        do |= {"edit": self._edit, "process": self._process, "open_on_gpu": lambda *_: ({}, ())}
        try:
            if descriptors or "memory_gone" in header:
                self._map(header, descriptors)
            return do[header["do"]](header, columns)
        except BaseException as error:  # noqa: BLE001 - somebody else's code may raise anything
            return {"error": _told(failures.of_sandboxed(error, header["name"]))}, ()

    def _map(self, header: dict[str, Any], descriptors: Sequence[int]) -> None:
        memory = self._hosted[header["processor"]].memory
        for gone in header.get("memory_gone", ()):
            memory.pop(gone, None)
        for descriptor, (number, size_bytes) in zip(descriptors, header.get("memory", ()), strict=True):
            try:
                memory[number] = self._opened(descriptor, size_bytes, on_gpu=header["do"] == "open_on_gpu")
            finally:
                os.close(descriptor)

    def _opened(self, descriptor: int, size_bytes: int, *, on_gpu: bool) -> mmap.mmap | torch.Tensor:
        if not on_gpu:
            return mmap.mmap(descriptor, size_bytes)
        if self._cuda is None:
            raise RuntimeError("this worker uses no GPU")
        return self._cuda.open_shared(descriptor, size_bytes)

    def _host(self, header: dict[str, Any], columns: Sequence[memoryview]) -> Reply:
        shipped = payload.Payload(bytes(columns[0]), header["digest"], header["python"], header["dill"])
        misses = self._loader.misses
        processor = self._loader.load(shipped)
        if dialects.recognise(processor)[1] != dialects.EDITS:
            _check_torch()
        dialect = speak(processor, header["name"], shipped=True)
        self._hosted[header["processor"]] = hosted = Hosted(dialect)
        unpickled = self._loader.misses > misses
        told: dict[str, Any] = {"reads_logits": dialect.reads_logits, "argmax_invariant": dialect.argmax_invariant}
        told["takes_drafts"] = dialect.takes_drafts
        if dialect.reads_logits and "gpu" in header:
            try:
                hosted.device = self._start_gpu(*header["gpu"])
            except Exception as error:  # noqa: BLE001 - the processor then runs on the CPU
                told["no_gpu"] = str(error)
        return {**told, "unpickled": unpickled}, ()

    def _start_gpu(self, index: int, uuid: str) -> str:
        from logitport_server.worker.gpu import open_gpu

        self._cuda = self._cuda or open_gpu(index, bytes.fromhex(uuid))
        return str(self._cuda.device)

    def _validate(self, header: dict[str, Any], columns: Sequence[memoryview]) -> Reply:
        self._hosted[header["processor"]].dialect.validate(orjson.loads(columns[0]), orjson.loads(columns[1]))
        return {}, ()

    def _start(self, header: dict[str, Any], columns: Sequence[memoryview]) -> Reply:
        params, sampling_params, token_ids = orjson.loads(columns[0]), orjson.loads(columns[1]), columns[2]
        ids, prompt = np.frombuffer(token_ids, "<i4"), header["prompt"]
        history = History(ids[:prompt], ids[prompt:])
        hosted = self._hosted[header["processor"]]
        context = RequestContext(
            header["request_id"],
            history,
            sampling_params,
            header["vocab_size"],
            header["tokenizer_id"],
            tuple(header["eos_token_ids"]),
            header["max_requests"],
            hosted.device,
        )
        hosted.start(header["state"], context, params)
        return {"argmax_invariant": hosted.dialect.argmax_invariant}, ()

    def _edit(self, header: dict[str, Any], columns: Sequence[memoryview]) -> Reply:
        hosted = self._hosted[header["processor"]]
        failed, places = _follow(hosted, header, columns)
        said: Any = hosted.dialect.edit(hosted.states(places)) if places else ()
        edits = Edits.pack(zip(places, said, strict=True), header["vocab_size"])
        return {"failed": failed}, edits.to_columns()

    def _process(self, header: dict[str, Any], columns: Sequence[memoryview]) -> Reply:
        hosted = self._hosted[header["processor"]]
        failed, places = _follow(hosted, header, columns)
        if places:
            before = header.get("drafts_before")
            hosted.dialect.drafts = [before[place] for place in places] if before else ()
            _call(hosted, places, _logits(hosted, header))
            for at, error in hosted.dialect.failed.items():
                failed[str(places[at])] = _told(failures.of_sandboxed(error, header["name"]))
        return {"failed": failed, "kept": hosted.newly_kept(places)}, ()


def _logits(hosted: Hosted, header: dict[str, Any]) -> torch.Tensor:
    """float[rows, vocab_size] in the memory that the frame names."""
    import torch

    rows, width = header["shape"]
    dtype = getattr(torch, header["dtype"])
    memory = hosted.memory[header["in"]]
    if isinstance(memory, torch.Tensor):
        size_bytes = rows * width * dtype.itemsize
        return memory[header["offset"] : header["offset"] + size_bytes].view(dtype).view(rows, width)
    return torch.frombuffer(memory, dtype=dtype, count=rows * width, offset=header["offset"]).view(rows, width)


def _call(hosted: Hosted, places: Sequence[int], logits: torch.Tensor) -> None:
    """Call the processor for the rows at these places, and put what it returns in the place of the logits."""
    import torch

    from logitport_server.dialects.results import check_result

    every = len(places) == len(logits)
    handed = (logits if every else logits[list(places)]).to(hosted.device)
    shape = handed.shape  # the processor may reshape its tensor in place
    with torch.no_grad():
        result = hosted.dialect.process(hosted.states(places), handed)
        check_result(result, shape, hosted.dialect.name)
        if not every:
            logits[list(places)] = result.to(logits)
        elif not result.is_set_to(logits):
            logits.copy_(result)


def _follow(
    hosted: Hosted, header: dict[str, Any], columns: Sequence[memoryview]
) -> tuple[dict[str, Any], Sequence[int]]:
    """What failed, by place, as it travels; and the places that are left."""
    if "states" in header:
        hosted.call_for(header["states"])
    told = struct.unpack(f"<{len(columns[0]) // 4}i", columns[0])
    failed = hosted.follow(header.get("counts"), told)
    hosted.mark_drafts(header.get("drafts", ()))
    return {str(place): _told(error) for place, error in failed.items()}, hosted.present(failed)


def _told(error: LogitportError) -> dict[str, Any]:
    told = to_proto(error)
    return {"code": told.code, "message": told.message, "trace": told.remote_traceback}


def _check_torch() -> None:
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise LoadFailed(
            "the processor reads logits, and the worker's Python has no torch: install torch for it, or derive the "
            f"processor from EditProcessor ({error})"
        ) from error
