"""The sandboxed side of `executors.worker_executor`: the process that runs one trust domain's processors.

Modules here must not import gRPC or the service. They must run on every Python that logitport supports, with or
without torch.
"""
