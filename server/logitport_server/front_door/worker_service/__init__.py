"""Starts workers for the principals' processes, and divides them. `worker_service_of` creates the service."""

from logitport_server.front_door.worker_service.worker_service import WorkerService
from logitport_server.front_door.worker_service.worker_service_choice import worker_service_of

__all__ = ["WorkerService", "worker_service_of"]
