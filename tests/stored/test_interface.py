"""Options, metrics and names of earlier versions are still there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.stored.interface import interface
from tests.stored.reading import each

if TYPE_CHECKING:
    from tests.conftest import RunningServer

REMEDY = "docs/upgrading.md says how a name may end; before its release, write the version's interface.json again"


@pytest.mark.parametrize("case", each("interface.json"))
def test_no_name_has_ended(server: RunningServer, case: dict[str, list[str]]) -> None:
    current = interface(server)
    ended = {kind: sorted({*names} - {*current.get(kind, ())}) for kind, names in case.items()}
    assert not {kind: names for kind, names in ended.items() if names}, REMEDY
