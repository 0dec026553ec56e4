"""Runs a recording again, with other processors, and compares the edits and logits."""
