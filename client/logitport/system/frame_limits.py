"""The size limits of frames and messages, in bytes: one table, which both ends of each connection import.

A limit that an operator sets, such as `--max-message-bytes`, has its default here. Limits of one field are next to the
code that reads the field.
"""

# --- Between an engine and a server ---

# Default of `max_message_bytes` of clients and servers: a message of gRPC in either direction, and a frame on any
# transport. 256 rows of 152k float32 logits take 156 MB.
DEFAULT_MAX_MESSAGE_BYTES = 256 << 20

# The frame with a step's columns, and the one that drops requests. 1024 rows of drafts take 40 kB. A server unpacks
# columns, and that takes many times their size.
MAX_STEP_BYTES = 1 << 20

# Ids, and words of bitmasks, of the edits of one step: as many as fit into the largest message, 4 bytes each. A request
# with a long list may have thousands of rows.
MAX_STEP_EDIT_IDS = DEFAULT_MAX_MESSAGE_BYTES // 4

# A frame with requests of the SDK: after so many bytes the next requests go into another frame. It is far below the
# default of `max_message_bytes`.
ADD_FRAME_BYTES = 4 << 20

# The largest number that the length before a frame on the local transport can be.
MAX_FRAME_LENGTH = (1 << 32) - 1

# --- In the front door ---

# A message that the event loop parses. A larger one would take it milliseconds.
SMALL_MESSAGE_BYTES = 1 << 16

# A message that needs no authentication: a health check.
OPEN_MESSAGE_BYTES = 4096

# A smaller message is not counted for what the front door holds of one principal; a larger reply waits for room.
LARGE_MESSAGE_BYTES = 1 << 20

# --- Between the front door and a principal's process, and between a server and the zygotes of workers ---

# One packet. The kernel takes no longer one than the buffer of a socket, 208 KiB by default.
MAX_PACKET_BYTES = 1 << 16

# --- Between a principal's process and a worker ---

# A message holds the state numbers of one call, or the errors of its rows.
MAX_WORKER_MESSAGE_BYTES = 4 << 20

# The message of a reply: the longest error and the longest output, with each character escaped, fit into the first
# number. Then, for each row, an error and the number of a state.
WORKER_REPLY_BYTES, WORKER_REPLY_BYTES_PER_ROW = 80 << 10, 4 << 10

# The columns of a call together.
MAX_WORKER_COLUMN_BYTES = (1 << 32) - 1

# The edits in the reply to one call. Biases of many rows over a large vocabulary fit.
MAX_WORKER_EDITS_BYTES = 64 << 20
