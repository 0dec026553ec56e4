"""The hook of SGLang without SGLang."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some tests load a class for the first time, which takes long on a busy machine."""
    monkeypatch.setattr("logitport.integrations.common.trials._MAX_ADMISSION_SECONDS", 120.0)
    monkeypatch.setattr("logitport.integrations.common.admissions.MAX_SECONDS", 120.0)
