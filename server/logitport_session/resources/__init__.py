"""What a session may use: limits, file descriptors, time, lines in the log, sizes of messages; and shortages."""
