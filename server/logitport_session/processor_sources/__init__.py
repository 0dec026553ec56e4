"""Where processors come from: their names, those that are installed, and programs."""
