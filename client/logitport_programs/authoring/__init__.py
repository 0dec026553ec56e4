"""What authors of processors write with; `logitport` exports it.

processor       the base class of processors that can be captured as programs
declarations    the parameters that a processor declares
tensor_history  the histories of rows, as such a processor sees them
"""
