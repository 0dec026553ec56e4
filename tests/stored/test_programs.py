"""Programs of earlier versions are still canonical and verified, and compute the same, on either side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from logitport import payload
from logitport_programs.program import Program
from logitport_programs.verifier import verify
from tests.stored.decoding import rows_of
from tests.stored.reading import each

if TYPE_CHECKING:
    from logitport import Client

every_program = pytest.mark.parametrize("case", each("programs/*.json"))
# Exponentials and sums may differ in their last bits between versions of torch and processors.
TOLERANCE = {"rtol": 1e-5, "atol": 1e-6}


@every_program
def test_a_stored_program_is_verified_and_has_the_same_bytes(case: dict[str, Any]) -> None:
    stored = payload.parse(case["serialized"]).data
    program = Program.from_bytes(stored)
    assert verify(program)
    assert program.to_bytes() == stored


@every_program
@pytest.mark.parametrize("side", ["all", "off"])
def test_a_stored_program_returns_the_same_rows(client: Client, case: dict[str, Any], side: str) -> None:
    rows = rows_of(client, [(case["serialized"], case["params"])], programs=side)
    np.testing.assert_allclose(rows, case["rows"], **TOLERANCE)
