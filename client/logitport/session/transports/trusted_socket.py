"""Connections to a server's Unix socket. The path comes from the server, so it is checked before anything is sent.

Without these checks, any server that a client calls could have bytes of its choice written to any Unix socket of the
client's host, for example to a container engine's.
"""

from __future__ import annotations

import os
import re
import socket
import stat
import struct
from pathlib import Path

# The name of a server's socket. Agents of SSH and GPG, for example, have sockets in private folders, too.
_SERVER_SOCKET = re.compile(r"/([^\0]*/)?logitport-[^/\0]*/session\.sock")
_PRIVATE = 0o700
_ROOT = 0
_CREDENTIALS = struct.Struct("iII")  # struct ucred: pid, uid, gid


def connect(path: str, seconds: float) -> socket.socket:
    """Connect to a server's socket, within this time, which is also the timeout of the returned socket.

    Raises:
        PermissionError: the socket may not be a server's: it has another name, other users have access to its folder,
            or its folder or its program belongs to a user that is neither this process's user nor root.
        OSError: the socket cannot be reached, as from another host or container.
    """
    if not _SERVER_SOCKET.fullmatch(path):
        raise PermissionError(f"{path!r} is not the name of a server's socket, /.../logitport-*/session.sock")
    if not (hasattr(socket, "AF_UNIX") and hasattr(socket, "SO_PEERCRED") and hasattr(os, "O_PATH")):
        raise OSError("this platform cannot check which user a Unix socket belongs to")
    folder, name = Path(path).parent, Path(path).name
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _check_folder(folder, descriptor)
        # By the descriptor, not by the path, which may lead to another folder by now.
        return _connect(f"/proc/self/fd/{descriptor}/{name}", path, seconds)
    finally:
        os.close(descriptor)


def _check_folder(folder: Path, descriptor: int) -> None:
    status = os.fstat(descriptor)
    if status.st_uid not in _trusted_users():
        raise PermissionError(f"{folder} belongs to user {status.st_uid}, {_expected_users()}")
    if status.st_mode & 0o777 != _PRIVATE:
        raise PermissionError(f"{folder} has mode {stat.S_IMODE(status.st_mode):04o} instead of {_PRIVATE:04o}")


def _connect(address: str, path: str, seconds: float) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(seconds)
        connection.connect(address)
        user = _user_of_peer(connection)
        if user not in _trusted_users():
            raise PermissionError(f"a program of user {user} listens on {path}, {_expected_users()}")
    except BaseException:
        connection.close()
        raise
    return connection


def _user_of_peer(connection: socket.socket) -> int:
    """Return the user id of the process that listens on the other end."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(data)
    return int(user)


def _trusted_users() -> set[int]:
    return {_ROOT, os.geteuid()}


def _expected_users() -> str:
    return f"but must belong to this process's user ({os.geteuid()}) or to root"
