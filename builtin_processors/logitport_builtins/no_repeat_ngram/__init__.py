"""`no_repeat_ngram`: prevents repeated n-grams."""

from logitport_builtins.no_repeat_ngram.index import NGramRule
from logitport_builtins.no_repeat_ngram.processor import NoRepeatNGram

__all__ = ["NGramRule", "NoRepeatNGram"]
