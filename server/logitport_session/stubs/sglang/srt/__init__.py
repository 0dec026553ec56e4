"""Stub of SGLang's runtime."""
