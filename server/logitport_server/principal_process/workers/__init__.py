"""A process's use of workers, which the front door starts and divides among the principals."""
