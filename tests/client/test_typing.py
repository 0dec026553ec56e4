"""What a type checker sees of the SDK."""

from __future__ import annotations

from pathlib import Path

import pytest
from mypy import api

ROOT = Path(__file__).parents[2]

CALLER = """
import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import assert_type

from logitport import Client, Request
from logitport.shipping.calls import ApplyResult
from logitport.session import Handle, Session


def applied(client: Client, tensor: torch.Tensor, array: NDArray[np.float32]) -> None:
    assert_type(client.apply(tensor, [Request([1])]), ApplyResult[torch.Tensor])
    assert_type(client.apply(tensor, []).logits, torch.Tensor)
    assert_type(client.apply(array, [], check=False).logits, NDArray[np.float32])


def ids(session: Session, handle: Handle, tensor: torch.Tensor, array: NDArray[np.int32]) -> None:
    Request(tensor, array), Request([1], (2,)), Request(range(3))
    session.step({handle: tensor}, drafts={handle: array})
    session.step({handle: [1]}, drafts={handle: (1, 2)})
"""

REFUSED = """
from logitport import Client, Request
from logitport.session import Handle, Session


def refused(client: Client, session: Session, handle: Handle) -> None:
    client.apply([[1.0]], [])
    Request("text")
    session.step({handle: 1})
"""


@pytest.mark.parametrize(("source", "errors"), [(CALLER, []), (REFUSED, ["type-var", "arg-type", "dict-item"])])
def test_mypy_of_a_callers_file(
    source: str, errors: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)  # the cache of mypy is there
    (tmp_path / "caller.py").write_text(source)
    report, problems, _ = api.run(["--strict", "--no-error-summary", str(tmp_path / "caller.py")])
    assert not problems
    found = [line for line in report.splitlines() if ": error: " in line]
    assert [line.rpartition("[")[2].rstrip("]") for line in found] == errors, report
