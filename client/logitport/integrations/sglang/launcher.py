"""SGLang's server with logitport's guard: `python -m logitport.integrations.sglang.launcher --model-path …`.

Takes the options of `sglang serve`, adds --enable-custom-logit-processor, and refuses to start without the guard.
Without LOGITPORT_TARGET, processors run in SGLang's own processes, see `Client.embedded`.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from logitport.client.embedded_server import TARGET as EMBEDDED
from logitport.integrations.common.environment import TARGET
from logitport.integrations.sglang import guard

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str]) -> None:
    """Serve until SGLang ends. Exits with an error message if the guard is not installed."""
    from sglang.launch_server import run_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    # SGLang's processes inherit it: without it, the plugin is inactive.
    os.environ[TARGET] = os.environ.get(TARGET) or EMBEDDED
    load_plugins()
    if not guard.installed():
        sys.exit(
            'SGLang did not load the plugin "logitport": see its log; if SGLANG_PLUGINS is set, add logitport there'
        )
    try:
        run_server(prepare_server_args([*argv, "--enable-custom-logit-processor"]))
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


if __name__ == "__mp_main__":
    # Each process that SGLang spawns imports this module first. SGLang only logs a plugin that fails to load; an
    # exception here ends the process.
    guard.install()

if __name__ == "__main__":
    main(sys.argv[1:])
