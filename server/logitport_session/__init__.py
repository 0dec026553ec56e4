"""A session as an object: frames in, replies out. It owns histories, states and limits, and knows no transport."""
