"""The fields of log records, and the interface of spans."""
