"""A sampled sequence, and the chain of processors that edited its logits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from logitport.core.history import int32_ids
from logitport.errors import InvalidArgument
from logitport.report import Report
from logitport.shipping.calls import unpack_int32
from logitport.shipping.request import Request
from logitport.training.engine_sampling import engine_sampling
from logitport_recording.reading.event_fields import history_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from logitport.core.history import TokenIds
    from logitport.shipping.request import ProcessorLike
    from logitport.training.engine_sampling import Engine
    from logitport_proto.recording_pb2 import RecordedProcessor
    from logitport_recording.reading.reader import RecordedRequest

_ID_BYTES = 4


class Rollout:
    """One sampled sequence, as an engine has made it.

    Args:
        prompt_token_ids: ids of the prompt, without padding: a list, an array or a tensor of integers, [n].
        output_token_ids: all ids that the engine sampled, in their order, with the end of the sequence.
        chain: (processor, parameters) pairs, as `Request.processors`: built-ins, grammars and programs.
        sampling: what the engine did after the chain: `temperature`, `top_k`, `top_p`, `min_p`.
        engine: the engine, which decides about the order and the ties of `sampling`.
        sampling_params: as `Request.sampling_params`, for processors that read them.

    Attributes:
        prompt_token_ids, output_token_ids: int32[n].
        forced: for each id of the output, whether the chain left no other id; set by a replay, before that None. Its
            log-probability and its gradient are 0: leave it out of a loss.
        request: the request before the first id was sampled. Its chain ends with `sampling`.
        temperature: a divisor of the logits after this chain.
        any_of_equal: see `EngineSampling`.

    Raises:
        InvalidArgument: an argument is invalid.
    """

    def __init__(
        self,
        prompt_token_ids: TokenIds,
        output_token_ids: TokenIds,
        chain: Sequence[tuple[ProcessorLike, Mapping[str, Any]]] = (),
        *,
        sampling: Mapping[str, float] | None = None,
        engine: Engine = "vllm",
        sampling_params: Mapping[str, Any] | None = None,
    ) -> None:
        self.prompt_token_ids: NDArray[np.int32] = np.array(int32_ids(prompt_token_ids, "prompt_token_ids"))
        self.output_token_ids: NDArray[np.int32] = np.array(int32_ids(output_token_ids, "output_token_ids"))
        self.forced: NDArray[np.bool_] | None = None
        after = engine_sampling(engine, sampling or {})
        self.temperature, self.any_of_equal = after.temperature, after.any_of_equal
        chain_pairs = Request(processors=chain).checked_processors()
        self.request = Request(
            self.prompt_token_ids,
            processors=(*chain_pairs, *after.processors),
            sampling_params=dict(sampling_params or {}),
        )

    @classmethod
    def from_report(
        cls,
        prompt_token_ids: TokenIds,
        output_token_ids: TokenIds,
        report: Report | Mapping[str, Any],
        params: Sequence[Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> Rollout:
        """Make a rollout of an engine's response with its report.

        Processors with a digest are replayed by it, so that a name which means another version today is no danger.

        Args:
            prompt_token_ids: as of the class.
            output_token_ids: as of the class.
            report: the report, or its JSON object in the response.
            params: the parameters of each of its processors, as the request had them; None for those in the report.
            options: further arguments of the class.

        Raises:
            InvalidArgument: an id was sampled without the chain; the message names its position in the output.
            InvalidArgument: `params` are not as many as the processors, or the report has none of a processor.
        """
        shown = report.to_json(with_params=True) if isinstance(report, Report) else report
        processors = shown["processors"]
        if params is not None and len(params) != len(processors):
            raise InvalidArgument(f"{len(params)} params for a report of {len(processors)} processors")
        if missing := [each["name"] for each in processors if params is None and "params" not in each]:
            raise InvalidArgument(
                f"the report has no parameters of {missing[0]!r}: pass params, or set LOGITPORT_REPORT=full for the "
                "engine"
            )
        failures = {begin: "the chain was skipped" for begin, _ in shown["skipped"]}
        if shown["error"]:
            failures[shown["failed_at"]] = shown["error"]
        _check_applied(failures, len(output_token_ids))
        if processors and len(output_token_ids) and not shown["rows_applied"]:
            raise InvalidArgument("the report has no row that the chain was applied to")
        given = [each["params"] for each in processors] if params is None else params
        chain = [(each.get("digest") or each["name"], one) for each, one in zip(processors, given, strict=True)]
        return cls(prompt_token_ids, output_token_ids, chain, **options)

    @classmethod
    def from_recording(cls, recorded: RecordedRequest, *, last_token_ids: TokenIds = (), **options: Any) -> Rollout:
        """Make a rollout of a request in a recording (`logitport_recording.read_recording`).

        Args:
            recorded: the request. Its chain is replayed by digests, and by programs that the recording holds.
            last_token_ids: ids that were sampled after the last recorded step. Its session has never received them.
            options: `sampling` and `engine`, as of the class.

        Raises:
            InvalidArgument: the chain has failed at a row; the message names the position in the output.
        """
        part = recorded.parts[-1]
        request = part.began.request
        prompt_length = len(request.prompt_ids) // _ID_BYTES
        history = history_of(part.began)
        failed: dict[int, str] = {}
        for step in recorded.steps:
            if step.error:
                failed[step.base_length + len(step.new_token_ids) // _ID_BYTES - prompt_length] = step.error
        for step in part.steps:
            history[step.base_length :] = unpack_int32(step.new_token_ids).tolist()
        output = [*history[prompt_length:], *int32_ids(last_token_ids, "last_token_ids").tolist()]
        _check_applied(failed, len(output))
        chain = [(_recorded_processor(each), orjson.loads(each.params or b"{}")) for each in recorded.began.processors]
        read = orjson.loads(request.sampling_params or b"{}")
        return cls(history[:prompt_length], output, chain, sampling_params=read, **options)

    def __len__(self) -> int:
        return len(self.output_token_ids)

    def __repr__(self) -> str:
        chain = len(self.request.processors)
        return f"<Rollout of {len(self)} ids after {len(self.prompt_token_ids)}, {chain} processors>"


def _check_applied(failures: Mapping[int, str], length: int) -> None:
    """Raise InvalidArgument for a failure at a position of the output."""
    if positions := [each for each in failures if each < length]:
        raise InvalidArgument(
            f"the chain has failed at the position {min(positions)} of the output, which was sampled without it: "
            f"{failures[min(positions)]}"
        )


def _recorded_processor(recorded: RecordedProcessor) -> str:
    """Return what names the processor of a recording: its program, its digest, or its name."""
    return recorded.payload or recorded.digest or recorded.builtin or recorded.name
