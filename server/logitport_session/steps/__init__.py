"""The steps of a session: from the columns of a frame to those of its reply."""
