"""The zygote's program. Its argument is the descriptor of its socket."""

from __future__ import annotations

import socket
import sys

from logitport_server.principal_process.zygote import run

run(socket.socket(fileno=int(sys.argv[1])))
