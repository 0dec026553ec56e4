"""The registered and installed processors, and the rules for loading them."""
