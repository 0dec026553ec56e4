"""An assertion for state that is not a function of the history."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from logitport import StateLost

if TYPE_CHECKING:
    from logitport import History
    from logitport_session.dialects import Dialect


def assert_lost(dialect: Dialect, state: Any, history: History, length: int) -> None:
    """Assert that every way of rebuilding the state raises StateLost, also after the history was cut back."""
    with pytest.raises(StateLost, match=r"'r-1': .*remove the request and add it again"):
        dialect.check_rebuildable(state)
    history.rewind(length)
    with pytest.raises(StateLost):
        dialect.rewind(state)
    with pytest.raises(StateLost):
        dialect.rebuild(state)
