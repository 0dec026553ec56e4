"""Requests as messages, and the ways to name a processor."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest

from logitport import (
    CustomLogitProcessor,
    InvalidArgument,
    NotFound,
    ProcessorRef,
    Request,
)
from logitport.shipping.request import name_processor
from logitport_proto import common_pb2, registry_pb2

DIGEST = "0123456789abcdef" * 4


class BuiltIn(CustomLogitProcessor):
    """A class with the mark of a built-in."""

    builtin_name = "a_built_in"

    def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
        return logits


def test_every_field_is_sent() -> None:
    request = Request(
        prompt_token_ids=np.array([1, 2]),
        output_token_ids=(3,),
        processors=[("disallowed_tokens", {"token_ids": [7]}), ("team/x", {})],
        request_id="r-1",
        sampling_params={"temperature": 0.5, "extra_args": {"a": [None, True]}},
        tenant="acme",
        on_error="skip",
    )
    message = request.to_proto()
    assert message.prompt_ids == np.array([1, 2], "<i4").tobytes()
    assert message.output_ids == np.array([3], "<i4").tobytes()
    assert not message.prompt_token_ids
    assert not message.output_token_ids
    assert (message.request_id, message.tenant, message.on_error) == ("r-1", "acme", common_pb2.ON_ERROR_SKIP)
    assert orjson.loads(message.sampling_params) == {"temperature": 0.5, "extra_args": {"a": [None, True]}}
    assert [call.processor.WhichOneof("by") for call in message.processors] == ["builtin", "name"]
    assert [orjson.loads(call.params) for call in message.processors] == [{"token_ids": [7]}, {}]


def test_defaults() -> None:
    message = Request().to_proto()
    assert message == common_pb2.Request(sampling_params=b"{}", on_error=common_pb2.ON_ERROR_ABORT)


NO_PAIRS: list[Any] = [["disallowed_tokens"], [BuiltIn], [("x",)], [("x", {}, 1)], 5]
REFUSED = [
    *(
        ({field: ids, "request_id": "r-1"}, f"'r-1': {field} .*32 bits")
        for field in ("prompt_token_ids", "output_token_ids")
        for ids in ([2**31], [-(2**31) - 1], [2**70], ["a"], [1.5], [None], "abc", 5)
    ),
    *(({field: value}, f"{field} ") for field in ("request_id", "tenant") for value in (5, None, "\ud800")),
    ({"on_error": "ignore"}, "on_error is 'ignore'"),
    *(({"processors": [("x", params)]}, "parameters of 'x': pass a mapping") for params in (None, [1], "x", 3)),
    *(({"sampling_params": params}, "sampling_params: pass a mapping") for params in (None, [1], "x", 3)),
    *(
        ({"processors": [("x", {"key": value})]}, "parameters of 'x' cannot be written as JSON")
        for value in (object(), {1: 2}, 2**64, b"bytes", "\ud800")
    ),
    *(({"processors": processors}, r"\(processor, parameters\) pairs") for processors in NO_PAIRS),
]


@pytest.mark.parametrize(("fields", "message"), REFUSED)
def test_fields_that_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        Request(**fields).to_proto()


@pytest.mark.parametrize(
    ("processor", "by", "value"),
    [
        ("thinking_budget", "builtin", "thinking_budget"),
        ("team/ban-french:v2", "name", "team/ban-french:v2"),
        (DIGEST, "digest", DIGEST),
        (DIGEST.upper(), "builtin", DIGEST.upper()),  # the server refuses it as unknown
        ('{"callable": "00"}', "payload", '{"callable": "00"}'),
        (' \n{"callable": "00"}', "payload", ' \n{"callable": "00"}'),
        (ProcessorRef(DIGEST, ("team/x",)), "digest", DIGEST),
        (ProcessorRef("", ("thinking_budget",), builtin=True), "builtin", "thinking_budget"),
        (BuiltIn, "builtin", "a_built_in"),
        (BuiltIn(), "builtin", "a_built_in"),
    ],
)
def test_ways_to_name_a_processor(processor: Any, by: str, value: str) -> None:
    named = name_processor(processor)
    assert (named.WhichOneof("by"), getattr(named, by)) == (by, value)


def test_an_empty_name() -> None:
    with pytest.raises(NotFound, match="empty"):
        name_processor("")


def test_a_class_derived_from_a_built_in_is_shipped() -> None:
    """It is not the built-in: its own code must be sent."""

    class Narrower(BuiltIn):
        pass

    assert name_processor(Narrower).WhichOneof("by") == "payload"


def test_ref_from_a_message() -> None:
    info = registry_pb2.ProcessorInfo(
        digest=DIGEST, names=["a/b", "c/d"], python="3.11", dill="0.4.1", size_bytes=38, registered_at=1.5
    )
    assert ProcessorRef.from_proto(info) == ProcessorRef(DIGEST, ("a/b", "c/d"), False, "3.11", "0.4.1", 38, 1.5)


def test_the_display_name_of_a_processor() -> None:
    info = registry_pb2.ProcessorInfo(digest=DIGEST, names=["a/b"], class_name="Ban", dialect="edits")
    ref = ProcessorRef.from_proto(info)
    assert (ref.class_name, ref.dialect, ref.display_name) == ("Ban", "edits", f"Ban (sha256:{DIGEST[:12]})")
    assert ProcessorRef(DIGEST, ("a/b",)).display_name == DIGEST
    built_in = ProcessorRef("", ("thinking_budget",), builtin=True, class_name="ThinkingBudget")
    assert built_in.display_name == "thinking_budget"
