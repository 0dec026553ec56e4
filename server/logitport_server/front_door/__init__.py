"""The front door: authenticates and admits callers, and passes their frames to the processes of their principals."""
