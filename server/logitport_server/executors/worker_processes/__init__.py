"""The processes of workers: their zygotes, forks, slots, sockets and ends.

The front door imports modules of this folder, so they import no torch.
"""
