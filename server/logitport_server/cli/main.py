"""Entry point of the `logitport` command."""

from __future__ import annotations

import io
import os
import signal
import sys


def main() -> None:
    """Run the command line. SIGINT and a closed pipe end the process by their signals, without a traceback."""
    if sys.argv[1:2] == ["serve"]:
        _prepare_signals()
    try:
        from logitport_server.cli import root
    except KeyboardInterrupt:
        _end_by(signal.SIGINT)
    except ModuleNotFoundError as error:
        from logitport.system.installation import how_to_install

        sys.exit(f"logitport: {error.name} is not installed; install it {how_to_install('server')}")
    # Without this, gRPC prints lines of its own next to our errors. Operators can still set the variable.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal may lack characters of names
    try:
        try:
            root.run()
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        _end_by(signal.SIGINT)
    except BrokenPipeError:
        _end_by(signal.SIGPIPE)


def _prepare_signals() -> None:
    """Set what signals do to a server until `StopSignals` takes over; its imports take seconds."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a request to read files again, before they are read
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Libraries may swallow a KeyboardInterrupt while they are imported.
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _end_by(number: signal.Signals) -> None:
    """End this process by the signal: a shell stops a script if a command ends by SIGINT, not if it exits with 130."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
