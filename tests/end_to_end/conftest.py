"""Fixtures that create certificates on demand."""

from __future__ import annotations

import pytest

from tests.certificates import Authority


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Authority trusted by the tests."""
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def untrusted_authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Authority that neither client nor server trusts."""
    return Authority(tmp_path_factory.mktemp("untrusted"))
