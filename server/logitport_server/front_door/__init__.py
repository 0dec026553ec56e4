"""The front door: authorizes calls, and passes their frames to the processes of their principals."""
