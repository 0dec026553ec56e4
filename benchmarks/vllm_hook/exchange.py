"""The floor of any service on the engine's machine: the native processor, and an exchange with another process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from benchmarks.socket_echo import SocketEchoStream
from benchmarks.vllm_hook.engines import ECHO_VARIABLE
from benchmarks.vllm_hook.native import Native

if TYPE_CHECKING:
    import torch

# Bytes of the hook's frame and reply in a step of 32 requests with the benchmark's chain.
_FRAME_BYTES, _REPLY_BYTES = 800, 8_500


class Exchange(Native):
    """Sends a frame before the forward pass, and receives the reply after it, as the hook does. Parses nothing."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        super().__init__(vllm_config, device, is_pin_memory)
        self._echo = SocketEchoStream(os.environ[ECHO_VARIABLE], bytes(_REPLY_BYTES))
        self._waits = False

    def update_state(self, batch_update: Any) -> None:
        super().update_state(batch_update)
        self._waits = bool(self._requests)
        if self._waits:
            self._echo.send(bytes(_FRAME_BYTES))

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        if self._waits:
            self._echo.receive()
            self._waits = False
        return super().apply(logits)
