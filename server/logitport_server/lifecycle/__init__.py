"""The life of a process: start errors, launch delays, stop signals, time slices and garbage collections."""
