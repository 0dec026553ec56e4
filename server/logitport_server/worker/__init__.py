"""The other side of `executors.process`: the process in which one trust domain's processors run.

It must import neither gRPC nor the service, and run on every Python that logitport supports, with or without torch.
"""
