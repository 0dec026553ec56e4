"""Limits of the size of a session's frames, in bytes. Both ends import this file."""

# Default of `max_message_bytes` of clients and servers: a message of gRPC in either direction, and a frame on any
# transport. 256 rows of 152k float32 logits take 156 MB.
DEFAULT_MAX_MESSAGE_BYTES = 256 << 20

# The frame with a step's columns, and the one that drops requests. 1024 rows of drafts take 40 kB. A server unpacks
# columns, and that takes many times their size.
MAX_STEP_BYTES = 1 << 20

# A frame with requests of the SDK: after so many bytes the next requests go into another frame. It is far below the
# default of `max_message_bytes`.
ADD_FRAME_BYTES = 4 << 20

# The largest number that the length before a frame on the local transport can be.
MAX_LENGTH = (1 << 32) - 1
