"""Reads the parameters of a built-in. Each error names the processor, the key and the value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from logitport.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

_MAX_ID = np.iinfo(np.int32).max  # token ids travel as int32
_MAX_DIGITS = len(str(_MAX_ID))


class Params:
    """One request's parameters for the processor called `processor`.

    A key with the value None counts as absent. The key `__req__`, which is set when a processor is called with a
    tensor, is not a parameter.

    Raises:
        InvalidArgument: a key is not in `keys`.
    """

    def __init__(self, processor: str, params: Mapping[str, Any], keys: tuple[str, ...]) -> None:
        self._processor = processor
        self._given = {key: value for key, value in params.items() if value is not None and key != "__req__"}
        unknown = [key for key in self._given if key not in keys]
        if unknown:
            raise self.error(f"unknown parameter {unknown[0]!r}; known parameters: {', '.join(keys)}")

    def __contains__(self, key: str) -> bool:
        return key in self._given

    def error(self, message: str) -> InvalidArgument:
        """Create the exception for a `message` about these parameters."""
        return InvalidArgument(f"{self._processor}: {message}")

    def is_text(self, key: str) -> bool:
        """Whether a parameter that may have several types is a string."""
        return isinstance(self._given.get(key), str)

    def string(self, key: str) -> str:
        """Read a string.

        Raises:
            InvalidArgument: absent, or another type.
        """
        value = self._required(key)
        if not isinstance(value, str):
            raise self.error(f"{key} must be a string, not {value!r}")
        return value

    def strings(self, key: str, max_count: int, max_bytes: int) -> list[str]:
        """Read a list of one text or more, none of them empty.

        Raises:
            InvalidArgument: absent, not a list of texts, an empty list or text, not valid Unicode, or too many.
        """
        value = self._required(key)
        if not isinstance(value, (list, tuple)) or not value or not all(isinstance(one, str) for one in value):
            raise self.error(f"{key} must be a list of one string or more, not {value!r:.100}")
        if len(value) > max_count:
            raise self.error(f"{key} has {len(value)} strings; the limit is {max_count}")
        return self.checked_texts(key, list(value), max_bytes)

    def checked_texts(self, key: str, texts: list[str], max_bytes: int) -> list[str]:
        """Return the texts of a key. Raises InvalidArgument for an empty one, invalid Unicode, and too many bytes."""
        if "" in texts:
            raise self.error(f"{key} has an empty string; it must have at least one character")
        try:
            size = sum(len(text.encode()) for text in texts)
        except UnicodeEncodeError as error:
            raise self.error(f"{key} is not valid Unicode text: {error}") from error
        if size > max_bytes:
            raise self.error(f"{key} has {size} bytes; the limit is {max_bytes}")
        return texts

    def integer(self, key: str, minimum: int) -> int:
        """Read an integer of at least `minimum`. A boolean is not an integer.

        Raises:
            InvalidArgument: absent, another type, or too small.
        """
        value = self._required(key)
        if type(value) is not int or value < minimum:
            raise self.error(f"{key} must be an integer of at least {minimum}, not {value!r}")
        return value

    def number(self, key: str, minimum: float, maximum: float) -> float:
        """Read an integer or a float in [minimum, maximum]. A boolean is not a number.

        Raises:
            InvalidArgument: absent, another type, NaN, or outside the limits.
        """
        value = self._required(key)
        if not _is_number(value) or not minimum <= value <= maximum:
            raise self.error(f"{key} must be a number in [{minimum:g}, {maximum:g}], not {value!r}")
        return float(value)

    def boolean(self, key: str) -> bool:
        """Read a boolean.

        Raises:
            InvalidArgument: absent, or another type.
        """
        value = self._required(key)
        if not isinstance(value, bool):
            raise self.error(f"{key} must be true or false, not {value!r}")
        return value

    def token_id(self, key: str) -> int:
        """Read a token id.

        Raises:
            InvalidArgument: absent, not an integer, or outside [0, 2**31).
        """
        value = self.integer(key, minimum=0)
        if value > _MAX_ID:
            raise self.error(f"{key} must be a token id, so at most {_MAX_ID}, not {value}")
        return value

    def token_ids(self, key: str) -> NDArray[np.int32]:
        """Read a list of token ids in the order given, int32[n], read-only.

        Raises:
            InvalidArgument: absent, not a list of integers, or an id outside [0, 2**31).
        """
        ids = np.array(self._ids(key, self._required(key)), np.int32)
        ids.flags.writeable = False
        return ids

    def token_sequences(self, key: str) -> list[list[int]]:
        """Read a list of lists of token ids, none of them empty.

        Raises:
            InvalidArgument: absent, not a list of lists of integers, an empty list inside, or an id outside [0, 2**31).
        """
        value = self._required(key)
        if not isinstance(value, (list, tuple)):
            raise self.error(f"{key} must be a list of lists of token ids, not {value!r}")
        sequences = [list(self._ids(f"{key}[{index}]", one)) for index, one in enumerate(value)]
        if [] in sequences:
            raise self.error(f"{key}[{sequences.index([])}] is empty; it must have at least one token id")
        return sequences

    def token_numbers(self, key: str, minimum: float, maximum: float) -> dict[int, float]:
        """Read an object of numbers in [minimum, maximum] by token id.

        The ids are integers or, as in JSON, strings of decimal digits.

        Raises:
            InvalidArgument: absent, another type, an id outside [0, 2**31) or given twice, or a number outside the
                limits.
        """
        value = self._required(key)
        if not isinstance(value, dict):
            raise self.error(f"{key} must be an object with a number for each token id, not {value!r}")
        numbers: dict[int, float] = {}
        for name, number in value.items():
            token_id = int(name) if isinstance(name, str) and _is_decimal(name) else name
            if type(token_id) is not int or not 0 <= token_id <= _MAX_ID:
                raise self.error(f"{key} must have token ids as keys, integers in [0, {_MAX_ID}], not {name!r:.100}")
            if token_id in numbers:
                raise self.error(f"{key} has token id {token_id} twice")
            if not _is_number(number) or not minimum <= number <= maximum:
                raise self.error(f"{key}[{token_id}] must be a number in [{minimum:g}, {maximum:g}], not {number!r}")
            numbers[token_id] = float(number)
        return numbers

    def _ids(self, key: str, value: Any) -> Sequence[int]:
        if not isinstance(value, (list, tuple)):
            raise self.error(f"{key} must be a list of token ids, not {value!r}")
        wrong = [item for item in value if type(item) is not int or not 0 <= item <= _MAX_ID]
        if wrong:
            raise self.error(f"{key} must hold token ids, integers in [0, {_MAX_ID}], not {wrong[0]!r}")
        return value

    def _required(self, key: str) -> Any:
        if key not in self._given:
            raise self.error(f"{key} is missing")
        return self._given[key]


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_decimal(name: str) -> bool:
    return name.isascii() and name.isdigit() and len(name) <= _MAX_DIGITS


def check_in_vocabulary(processor: str, token_ids: ArrayLike, vocab_size: int) -> None:
    """Check that ids of the parameters, int[n], are below the width of the logits.

    Raises:
        InvalidArgument: an id is not below `vocab_size`.
    """
    largest = np.max(token_ids, initial=0)
    if largest >= vocab_size:
        raise InvalidArgument(
            f"{processor}: the parameters name token id {largest}, but ids must lie in [0, {vocab_size}): "
            "check that they are for this model's tokenizer"
        )
