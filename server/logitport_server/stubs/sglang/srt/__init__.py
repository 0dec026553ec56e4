"""Stands for SGLang's runtime."""
