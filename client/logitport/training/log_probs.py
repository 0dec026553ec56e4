"""Log-probabilities of sampled ids under the distribution that they were sampled from."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Literal

import torch

from logitport.errors import InvalidArgument
from logitport.shipping.calls import count
from logitport.training.chain_steps import ChainSteps
from logitport.training.tiled_passes import TiledPass, TilePlan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from logitport.client import Client
    from logitport.shipping.request import ProcessorLike
    from logitport.training.rollout import Rollout

TILE_ROWS = 2048
_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
# Of the edits that are kept between the forward and the backward pass. More are computed again.
_KEEP_BYTES = 64 << 20


class ChainReplay:
    """Replays the chains of rollouts on a trainer's logits. Its instances are functions. Thread-safe.

    Args:
        tokenizer_id: the model's tokenizer, for grammars and built-ins that read text, as `Client.session`.
        eos_token_ids: end-of-sequence ids, as the engine's session has them.
        programs: a folder with programs that chains name, as `Client.embedded`.
        client: of the server where other programs that chains name are registered. Each is fetched once.
        trusted: shipped processors that run in this process, without a sandbox: their classes, as the engine's client
            has shipped them, or their payloads. They must be `EditProcessor`s. Other code is refused.
        tile_rows: rows that are computed at once: the most logits that exist, in float32.
        denied_by_programs: what happens if a program, such as top-p, denies an id that was sampled: with "raise" an
            error; with "keep" the id counts as if the program had kept it. Under logits that have changed since the
            sampling, the second one is needed.

    Raises:
        InvalidArgument: an argument is invalid.
    """

    def __init__(
        self,
        *,
        tokenizer_id: str = "",
        eos_token_ids: Sequence[int] = (),
        programs: str = "",
        client: Client | None = None,
        trusted: Sequence[ProcessorLike] = (),
        tile_rows: int = TILE_ROWS,
        denied_by_programs: Literal["raise", "keep"] = "raise",
    ) -> None:
        if denied_by_programs not in ("raise", "keep"):
            raise InvalidArgument(f"denied_by_programs is {denied_by_programs!r}; write 'raise' or 'keep'")
        self._settings = tokenizer_id, eos_token_ids, programs, client, trusted
        self._tile_rows = count(tile_rows, "tile_rows", 1)
        self._keeps_sampled = denied_by_programs == "keep"
        self._made: ChainSteps | None = None
        self._lock = threading.Lock()

    def __call__(self, logits: torch.Tensor, rollouts: Sequence[Rollout]) -> torch.Tensor:
        """Return the log-probability of each id of the outputs, float32 [B, T].

        It is differentiable: the gradient of an id that the chain denies is 0. `Rollout.forced` is set.

        Args:
            logits: [B, T, V], float32, float16 or bfloat16, on any device; float64 is for checks. Row t of rollout b,
                `logits[b, t]`, is what the model returned for the id before `output_token_ids[t]`: of a model's logits
                for prompt and output, those from the last id of the prompt on, without the very last one. Rows after
                the last id of an output are padding, and may hold anything.
            rollouts: B rollouts, with outputs of at most T ids.

        Returns:
            Log-probabilities, 0 after the last id of an output. float64 for float64.

        Raises:
            InvalidArgument: shapes do not fit, or a chain cannot be replayed; the message names the rollout.
            InvalidArgument: a chain denies an id that was sampled; the message names rollout and position.
            InvalidArgument: each id of a rollout is forced, so that it shows nothing of a policy.
        """
        rollouts = list(rollouts)
        _check(logits, rollouts, "logits")
        plan = self._plan(rollouts, logits.shape[2])
        return _checked(rollouts, TiledPass.apply(logits, None, None, plan))  # type: ignore[no-untyped-call,unused-ignore]

    def linear(
        self,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        rollouts: Sequence[Rollout],
        *,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the same of the logits `hidden @ weight.T + bias`, of which one tile exists at a time.

        Args:
            hidden: hidden states [B, T, H]: `hidden[b, t]` belongs to `output_token_ids[t]` of rollout b, as in a call.
            weight: of the model's last layer, [V, H], of the dtype of the hidden states.
            rollouts: B rollouts, with outputs of at most T ids.
            bias: of the last layer, [V].

        Returns, raises: as a call. All three tensors get gradients.
        """
        rollouts = list(rollouts)
        _check(hidden, rollouts, "hidden")
        if weight.dim() != 2 or weight.shape[1] != hidden.shape[2] or weight.dtype is not hidden.dtype:
            raise InvalidArgument(
                f"weight is {_shape(weight)} and hidden {_shape(hidden)}: pass [V, H] and [B, T, H] of one dtype"
            )
        if bias is not None and (bias.shape != weight.shape[:1] or bias.dtype is not weight.dtype):
            raise InvalidArgument(
                f"bias is {_shape(bias)} and weight {_shape(weight)}: pass [V] and [V, H] of one dtype"
            )
        plan = self._plan(rollouts, weight.shape[0])
        return _checked(rollouts, TiledPass.apply(hidden, weight, bias, plan))  # type: ignore[no-untyped-call,unused-ignore]

    def _plan(self, rollouts: Sequence[Rollout], vocab_size: int) -> TilePlan:
        with self._lock:
            if self._made is None:
                self._made = ChainSteps(*self._settings)
        return TilePlan(
            self._made,
            rollouts,
            vocab_size,
            tile_rows=self._tile_rows,
            keep_bytes=_KEEP_BYTES,
            keeps_sampled=self._keeps_sampled,
        )


def _checked(rollouts: Sequence[Rollout], found: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Set `Rollout.forced`. Raises InvalidArgument for a denied id, and for a rollout without a choice."""
    log_probs, alone = found
    denied = (log_probs.detach() == -torch.inf).nonzero()
    if len(denied):
        index, position = denied[0].tolist()
        raise InvalidArgument(_denied(rollouts[index], index, position))
    for index, (rollout, forced) in enumerate(zip(rollouts, alone.cpu().numpy(), strict=True)):
        rollout.forced = forced[: len(rollout)].copy()
        if len(rollout) and rollout.forced.all():
            raise InvalidArgument(
                f"rollout {index}: its chain forces each of its {len(rollout)} ids, so that no policy has sampled "
                "them: leave it out, or leave out the processor that samples"
            )
    return log_probs


def _denied(rollout: Rollout, index: int, position: int) -> str:
    return (
        f"rollout {index}, position {position} of the output: the id {rollout.output_token_ids[position]} was sampled, "
        "and the chain denies it. The engine has not applied this chain, or not with these parameters. If a program "
        "such as top-p denies it under logits that have changed since: ChainReplay(denied_by_programs='keep')"
    )


def _check(values: torch.Tensor, rollouts: Sequence[Rollout], name: str) -> None:
    if not isinstance(values, torch.Tensor) or values.dim() != 3 or values.dtype not in _DTYPES:
        shown = _shape(values) if isinstance(values, torch.Tensor) else type(values).__name__
        raise InvalidArgument(f"{name} is {shown}; pass a tensor of three dimensions, of floats")
    if len(values) != len(rollouts):
        raise InvalidArgument(f"{name} has {len(values)} sequences, for {len(rollouts)} rollouts")
    for index, rollout in enumerate(rollouts):
        if len(rollout) > values.shape[1]:
            raise InvalidArgument(
                f"rollout {index} has {len(rollout)} ids, and {name} {values.shape[1]} rows for each: pass a row for "
                "each id of the output"
            )


def _shape(values: torch.Tensor) -> str:
    return f"{str(values.dtype).removeprefix('torch.')}{list(values.shape)}"


replay = ChainReplay()
