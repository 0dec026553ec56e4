"""Checks of the message that opens a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitport.core import tensors
from logitport.errors import InvalidArgument, LimitExceeded
from logitport_server.session.admission import check_token_ids

if TYPE_CHECKING:
    from logitport_proto import processing_pb2

# Of a request in one step: trees of drafts have tens of tokens. Each is a row, with work for each processor.
MAX_DRAFT_TOKENS = 256
# These fields are sent to workers with every request.
_MAX_EOS_TOKEN_IDS = 1024
_MAX_TOKENIZER_ID_LENGTH = 4096  # a path, perhaps


def check_opening(opening: processing_pb2.OpenSession) -> None:
    """Check the message. Raises InvalidArgument, LimitExceeded."""
    if opening.vocab_size < 1:
        raise InvalidArgument(f"vocab_size is {opening.vocab_size}; send the width of the logits, 1 or more")
    if opening.datatype not in tensors.DATATYPES:
        raise InvalidArgument(f"datatype is {opening.datatype!r}; write one of {', '.join(tensors.DATATYPES)}")
    if opening.max_requests < 0 or opening.max_draft_tokens < 0:
        raise InvalidArgument(
            f"max_requests is {opening.max_requests} and max_draft_tokens {opening.max_draft_tokens}; "
            "both must be 0 or more"
        )
    if opening.expected_requests < 0:
        raise InvalidArgument(f"expected_requests is {opening.expected_requests}; it must be 0 or more")
    if opening.max_draft_tokens > MAX_DRAFT_TOKENS:
        raise LimitExceeded(
            f"max_draft_tokens is {opening.max_draft_tokens}; the server accepts {MAX_DRAFT_TOKENS} per "
            "request and step: draft fewer"
        )
    check_token_ids(opening.eos_token_ids, opening.vocab_size, "eos_token_ids")
    if len(opening.eos_token_ids) > _MAX_EOS_TOKEN_IDS or len(opening.tokenizer_id) > _MAX_TOKENIZER_ID_LENGTH:
        raise InvalidArgument(
            f"eos_token_ids has {len(opening.eos_token_ids)} ids and tokenizer_id {len(opening.tokenizer_id)} "
            f"characters; the limits are {_MAX_EOS_TOKEN_IDS} and {_MAX_TOKENIZER_ID_LENGTH}"
        )
