"""Stands for SGLang's package of this name."""
