"""The operator's tokenizers, for processors: read-only, and in a worker shared with all others.

`operator_tokenizer` finds one by name. Nothing here imports the package `tokenizers` before it is needed.
"""

from typing import TYPE_CHECKING

from logitport.system.lazy import names_of
from logitport.tokenizers.named_tokenizers import add, configure, remove, shipped_tokenizer
from logitport.tokenizers.tokenizer_file import TokenizerFile

if TYPE_CHECKING:
    from logitport.tokenizers.tokenizer import MISSING, Tokenizer, operator_tokenizer, read_tokenizer, vocabulary_digest

__all__ = [
    "MISSING",
    "Tokenizer",
    "TokenizerFile",
    "add",
    "configure",
    "operator_tokenizer",
    "read_tokenizer",
    "remove",
    "shipped_tokenizer",
    "vocabulary_digest",
]

# It needs numpy; a server's front door, which only reads the files, does not.
__getattr__ = names_of(
    __name__,
    {"logitport.tokenizers.tokenizer": "MISSING Tokenizer operator_tokenizer read_tokenizer vocabulary_digest"},
)
