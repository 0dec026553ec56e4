"""Stub of SGLang's package of this name."""
