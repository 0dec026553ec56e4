"""Stub of NVIDIA Dynamo's package of this name."""
