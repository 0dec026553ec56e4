"""`python -m logitport_server.worker FD`: run a zygote that is controlled over the socket FD."""

from __future__ import annotations

import socket
import sys

from logitport_server.worker.zygote import run

if __name__ == "__main__":
    run(socket.socket(fileno=int(sys.argv[1])))
