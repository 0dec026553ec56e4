"""The service. docs/structure.md walks a step through its rooms."""
