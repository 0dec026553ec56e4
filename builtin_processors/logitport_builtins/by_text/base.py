"""Base of the built-ins by text."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from logitport.processors import EditProcessor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from logitport.processors import EditRequest


class TextProcessor(EditProcessor):
    """A built-in that follows the text of the output.

    `start` of a subclass sets `request.state` to an object with the methods `advance(token_id)` and
    `rewind(output_length)`, such as `Followed`.
    """

    takes_long = True
    only_denies = True
    bytes_per_output_id = 200
    bytes_per_params_byte = 400

    @classmethod
    def validate_params(cls, params: Mapping[str, Any]) -> None:
        """Raises InvalidArgument, PayloadError."""
        cls.read(params)

    @classmethod
    @abstractmethod
    def read(cls, params: Mapping[str, Any]) -> object:
        """Return the checked parameter. Raises InvalidArgument, PayloadError."""

    def advance(self, request: EditRequest, token_id: int) -> None:
        """Read one more id."""
        request.state.advance(token_id)

    def rewind(self, request: EditRequest) -> None:
        """Forget the ids that were cut off."""
        request.state.rewind(request.history.length - request.history.prompt_length)
