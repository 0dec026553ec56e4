"""The steps of a session: from the columns of a frame to its reply's."""
