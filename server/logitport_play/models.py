"""The models that the page can run, with the texts of their ids."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from logitport.errors import InvalidArgument, NotInstalled
from logitport.system.bounded import BoundedTable
from logitport_testing import StoryModel
from logitport_testing.models.logits_sources import TransformersModel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from logitport_testing.models.logits_sources import Model

STORY = "story"
_CACHED_BYTES = 256 << 20


@dataclass(eq=False)
class PlayModel:
    """A model with a cache of its logits, so that another chain, or another id, does not run it again.

    Attributes:
        name: the name that the page shows.
        model: returns logits.
        encode: returns the ids of a prompt. Raises InvalidArgument.
        token_text: returns the text of an id; None if there are no texts.
        prompt: the prompt to begin with.
        expression: Python code that makes the model, and the imports of it, for exported tests.
        tokenizer_path: the folder where processors find its tokenizer; it may have none.
        eos_token_ids: ids that end a sequence.
    """

    name: str
    model: Model
    encode: Callable[[str], list[int]]
    token_text: Callable[[int], str] | None
    prompt: str
    expression: tuple[str, str]
    tokenizer_path: Path
    eos_token_ids: tuple[int, ...] = ()
    _rows: BoundedTable[tuple[int, ...], NDArray[np.float32]] = field(default_factory=lambda: BoundedTable(1))

    def __call__(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        """The logits after these ids, float32[vocab_size]; not to be changed."""
        key = tuple(token_ids)
        row = self._rows.use(key)
        if row is None:
            row = self.model(token_ids)
            self._rows.limit = max(1, _CACHED_BYTES // row.nbytes)
            self._rows[key] = row
        return row


def story() -> PlayModel:
    """The model that is shipped with the SDK."""
    model = StoryModel()
    expression = ("StoryModel()", "from logitport_testing import StoryModel")
    return PlayModel(
        STORY,
        model,
        model.encode,
        model.token_text,
        "Once upon a time",
        expression,
        model.tokenizer_path,
        model.eos_token_ids,
    )


def from_folder(folder: Path) -> PlayModel:
    """Load a causal model of transformers, with its tokenizer if the folder has one. No code of the folder runs.

    Raises:
        NotInstalled: transformers is not installed.
        InvalidArgument: the folder has no such model.
    """
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise NotInstalled(f"--model needs transformers ({error}): pip install transformers") from error
    if not folder.is_dir():
        raise InvalidArgument(f"--model {folder}: there is no such folder; write a folder of save_pretrained")
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"--model {folder}: it has no causal model of transformers: {error}") from error
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError):
        tokenizer = None
    expression = (
        f"AutoModelForCausalLM.from_pretrained({str(folder.resolve())!r})",
        "from transformers import AutoModelForCausalLM",
    )
    eos = getattr(model.generation_config, "eos_token_id", None)
    eos_token_ids = tuple(eos) if isinstance(eos, list) else () if eos is None else (int(eos),)
    rows = TransformersModel(model.eval())
    if tokenizer is None:
        encode = _number_reader(int(model.config.vocab_size))
        return PlayModel(folder.name, rows, encode, None, "1 2 3", expression, folder, eos_token_ids)
    texts = _Texts(tokenizer)
    return PlayModel(
        folder.name, rows, texts.encode, texts.token_text, "Once upon a time", expression, folder, eos_token_ids
    )


def open_models(folders: Iterable[Path]) -> dict[str, PlayModel]:
    """The models by name: from the folders, then the shipped one. Raises the errors of `from_folder`."""
    models: dict[str, PlayModel] = {}
    for folder in folders:
        model = from_folder(folder)
        while model.name in models or model.name == STORY:
            model.name += "'"
        models[model.name] = model
    return {**models, STORY: story()}


class _Texts:
    """The texts of a tokenizer of transformers."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        return [int(token_id) for token_id in self._tokenizer(text).input_ids]

    def token_text(self, token_id: int) -> str:
        token = self._tokenizer.convert_ids_to_tokens(token_id)
        if token is None:  # the logits may be wider than the vocabulary
            return f"<{token_id}>"
        if "\N{LOWER ONE EIGHTH BLOCK}" in token:  # SentencePiece's space, which `decode` drops at the begin
            return str(token.replace("\N{LOWER ONE EIGHTH BLOCK}", " "))
        return str(self._tokenizer.decode([token_id]))


def _number_reader(vocab_size: int) -> Callable[[str], list[int]]:
    def read(text: str) -> list[int]:
        words = text.replace(",", " ").split()
        if not all(word.isascii() and word.isdigit() and len(word) < 10 for word in words):
            raise InvalidArgument("the model has no tokenizer: write the prompt as ids, for example 1 2 3")
        ids = [int(word) for word in words]
        if any(token_id >= vocab_size for token_id in ids):
            raise InvalidArgument(f"the prompt has the id {max(ids)}; ids must lie in [0, {vocab_size})")
        return ids

    return read
