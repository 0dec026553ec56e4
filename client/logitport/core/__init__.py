"""Types that both ends of the wire share: histories, edits, tensors, declared parameters, the compiled core."""
