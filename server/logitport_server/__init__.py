"""The service. docs/architecture.md shows the way of a step through its files."""
