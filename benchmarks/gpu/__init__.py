"""Everything that wants a GPU, in one command: `make gpu`, or `python -m benchmarks.gpu`."""
