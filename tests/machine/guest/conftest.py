"""Fixtures of the tests in a machine. Elsewhere, they are skipped."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.machine.guest.service import Service

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def in_a_machine() -> None:
    if "LOGITPORT_MACHINE" not in os.environ:
        pytest.skip("runs in a virtual machine: `make machine`")


@pytest.fixture
def service(in_a_machine: None) -> Iterator[Service]:
    """The unit, stopped before and after the test. Its log is printed, so that a failure shows it."""
    running = Service()
    try:
        yield running
    finally:
        print(running.log()[-8000:])
        running.end()
