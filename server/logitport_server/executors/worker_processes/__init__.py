"""The processes of workers: their zygotes, forks, slots, sockets and ends."""
