"""`python -m logitport_server.worker FD [NAME=FD ...]`: run a zygote that is controlled over the socket FD.

Each NAME is a tokenizer, and its FD memory with the tokenizer's files.
"""

from __future__ import annotations

import socket
import sys

from logitport_server.worker.worker_zygote import run

if __name__ == "__main__":
    run(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:])
