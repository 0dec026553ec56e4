"""Values of `record=` and of the environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from logitport import InvalidArgument
from logitport_recording import RecordOptions
from logitport_recording.record_options import VARIABLE, _options_of_environment, options_of


def test_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    options = RecordOptions("file", top_k=3)
    assert options_of(options) is options
    assert options_of("file") == RecordOptions("file")
    assert options_of(None) is None
    assert options_of(False) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"path": ""},
        {"path": 3},
        {"top_k": 0},
        {"sample_every": -1},
        {"sample_every": True},
        {"max_bytes": 10},
        {"requests": "chat-*"},
        {"requests": 5},
        {"requests": [5]},
        {"payloads": 1},
    ],
)
def test_wrong_values(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=f"record: {next(iter(wrong))}"):
        RecordOptions(**{"path": "file", **wrong})


def test_patterns() -> None:
    options = RecordOptions("file", requests=["chat-*", "x"])
    assert [options.chooses(one) for one in ("chat-1", "x", "xy", "")] == [True, True, False, False]
    assert RecordOptions("file").chooses("")


def test_the_environment(caplog: Any) -> None:
    assert _options_of_environment({}) is None
    assert _options_of_environment({VARIABLE: "/tmp/x"}) == RecordOptions(Path("/tmp/x"))
    chosen = {VARIABLE: '{"path": "/tmp/x", "sample_every": 1, "requests": ["a"]}'}
    assert _options_of_environment(chosen) == RecordOptions("/tmp/x", ["a"], 1)
    assert _options_of_environment({VARIABLE: f"\n {chosen[VARIABLE]}"}) == RecordOptions("/tmp/x", ["a"], 1)
    assert not caplog.records
    for wrong in ("{", "{}", '{"path": ""}', '{"path": "y", "top_k": 0}', '{"path": "y", "colour": 1}'):
        assert _options_of_environment({VARIABLE: wrong}) is None
    assert len(caplog.records) == 5
    assert "nothing is recorded" in caplog.text
