"""How commands print tables, quantities, and texts that they do not trust."""
