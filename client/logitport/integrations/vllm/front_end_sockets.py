"""Messages from vLLM's workers to its front ends, which answer the clients: a datagram socket for each front end.

vLLM's processes have no other channel for a hook. Rejected: a file for each message, which takes 0.2 ms; a token id
that marks failures, because no id is unused in every model.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import socket
import tempfile
import weakref
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_log = logging.getLogger(__name__)

# Of a datagram: the kernel limits it to the size of the sender's buffer, by default 208 KiB.
_DATAGRAM_BYTES = 1 << 16
# Of a message: it is sent in a datagram of its own if it is larger than the number above.
_MESSAGE_BYTES = 1 << 17
# Messages that wait for room in a front end's socket. The oldest ones are dropped.
_MAX_WAITING = 1024


class FrontEndSender:
    """A worker's end. Never waits: what a front end has no room for is sent with the next messages.

    Args:
        instance_id: vLLM's name of the engine, identical in all of its processes.
    """

    def __init__(self, instance_id: str) -> None:
        self._folder = _private_folder(instance_id)
        self._added: list[bytes] = []
        # By the path of each front end's socket, and when the folder had these sockets.
        self._front_ends: dict[str, _FrontEnd] = {}
        self._listed_at = -1

    def add(self, message: dict[str, Any]) -> None:
        """Add a message, which `flush` sends. Logs one that no datagram can hold. Does nothing without a folder."""
        if self._folder is None:
            return
        data = orjson.dumps(message)
        if len(data) <= _MESSAGE_BYTES:
            self._added.append(data)
        else:  # at the head of a queue it would hold up the messages of all other requests
            text = "a message of %d bytes does not reach vLLM's front end: the limit is %d"
            _log.error(text, len(data), _MESSAGE_BYTES)

    def flush(self) -> None:
        """Send all messages. Logs an error if they cannot be sent."""
        if self._folder is None or not (self._added or any(one.waiting for one in self._front_ends.values())):
            return
        added, self._added = self._added, []
        try:
            changed_at = os.stat(self._folder).st_mtime_ns
            if changed_at != self._listed_at:
                paths = [str(path) for path in self._folder.iterdir() if path.suffix == ".sock"]
                self._front_ends = {path: self._front_ends.get(path) or _FrontEnd(path) for path in paths}
                self._listed_at = changed_at
            for front_end in self._front_ends.values():
                front_end.send(added)
        except OSError as error:
            _log.error("failures and reports do not reach vLLM's front end, in %s: %s", self._folder, error)


class _FrontEnd:
    """A front end, as its worker sees it. Has a socket of its own: what it does not receive fills the sender's buffer.

    Attributes:
        waiting: messages that it had no room for.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        weakref.finalize(self, self._socket.close)
        self.waiting: deque[bytes] = deque(maxlen=_MAX_WAITING)

    def send(self, messages: Iterable[bytes]) -> None:
        """Send these messages after those that wait, until there is no room. Raises OSError."""
        waiting = self.waiting
        waiting.extend(messages)
        try:
            while waiting:
                count, datagram = _joined(waiting)
                self._socket.sendto(datagram, self._path)
                for _ in range(count):
                    waiting.popleft()
        except BlockingIOError:
            pass
        except (ConnectionRefusedError, FileNotFoundError):  # the front end has ended
            waiting.clear()
            Path(self._path).unlink(missing_ok=True)


class FrontEndReceiver:
    """A front end's end. A worker finds it from its creation on; what was sent before is lost.

    Args:
        instance_id: as for `FrontEndSender`.
    """

    def __init__(self, instance_id: str) -> None:
        folder = _private_folder(instance_id)
        self._socket: socket.socket | None = None
        if folder is None:
            return
        path = folder / f"{os.getpid():x}-{secrets.token_hex(2)}.sock"
        receiving = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            receiving.bind(str(path))
        except OSError as error:  # such as a path that is too long
            receiving.close()
            _log.warning("vLLM's clients get no errors and no reports of requests: %s: %s", path, error)
            return
        receiving.setblocking(False)
        self._socket = receiving
        self.close = weakref.finalize(self, _remove, receiving, path)

    def receive(self) -> Iterator[dict[str, Any]]:
        """Yield the messages that have arrived."""
        while self._socket is not None:
            try:
                datagram = self._socket.recv(1 << 18)
            except BlockingIOError:
                return
            with suppress(orjson.JSONDecodeError):
                yield from orjson.loads(datagram)


def _joined(messages: Iterable[bytes]) -> tuple[int, bytes]:
    """Join the first messages to a JSON list of limited size, with one at least. Returns their number, and the list."""
    part: list[bytes] = []
    size_bytes = 0
    for message in messages:
        size_bytes += len(message) + 1
        if part and size_bytes > _DATAGRAM_BYTES:
            break
        part.append(message)
    return len(part), b"[" + b",".join(part) + b"]"


def _remove(receiving: socket.socket, path: Path) -> None:
    receiving.close()
    path.unlink(missing_ok=True)


def _private_folder(instance_id: str) -> Path | None:
    """Return the folder of this engine, which only this user can open; None without one."""
    if not instance_id:
        return None
    parent = Path(tempfile.gettempdir()) / f"logitport-vllm-{os.getuid()}"
    folder = parent / hashlib.blake2b(instance_id.encode(), digest_size=8).hexdigest()
    try:
        for path in (parent, folder):
            path.mkdir(mode=0o700, exist_ok=True)
            found = path.lstat()
            if found.st_uid != os.getuid() or found.st_mode & 0o7077 or path.is_symlink():
                raise PermissionError(f"{path} belongs to another user, or others may open it")
    except OSError as error:
        _log.warning("vLLM's clients get no errors and no reports of requests: %s", error)
        return None
    return folder
