"""Types that both ends of the wire share: histories, edits, tensors, CUDA memory handles, local frames."""
