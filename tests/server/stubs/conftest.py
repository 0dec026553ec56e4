"""The executors' fixtures, for tests that load processors with stubs in workers."""

from tests.server.executors.conftest import ship, workers, zygote

__all__ = ["ship", "workers", "zygote"]
