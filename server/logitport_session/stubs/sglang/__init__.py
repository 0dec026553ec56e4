"""Stub of SGLang."""
