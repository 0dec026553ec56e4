"""Stands for SGLang."""
