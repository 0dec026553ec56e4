"""`no_repeat_ngram`: prevents repeated n-grams."""

from logitport_builtins.no_repeat_ngram.processor import NGramRule, NoRepeatNGram

__all__ = ["NGramRule", "NoRepeatNGram"]
