"""Command lines: the parser of argparse, and its options from the fields of pydantic's models."""
