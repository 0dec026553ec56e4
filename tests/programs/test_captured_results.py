"""A captured program, in the reference interpreter, computes what its processor computes in torch."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from logitport import History
from logitport_programs import reference
from logitport_programs.capturing import capture
from logitport_programs.verifier import verify
from tests.programs import samplers

HISTORIES = [([1, 2, 3], [7, 7]), ([5], []), ([9, 9, 9, 9], [4500])]
VOCAB = 4500


@pytest.mark.parametrize(("cls", "params"), samplers.CASES)
def test_programs_compute_what_processors_compute(cls, params) -> None:
    program = verify(capture(cls))
    rows = [
        {name: values[row] for name, values in params.items()}
        | {"__req__": SimpleNamespace(origin_input_ids=prompt, output_ids=output)}
        for row, (prompt, output) in enumerate(HISTORIES)
    ]
    random = np.random.default_rng(0)
    for dtype, rtol in ((np.float32, 3e-7), (np.float16, 1e-3)):
        logits = (random.standard_normal((3, VOCAB)) * 3).astype(dtype)
        expected = cls()(torch.from_numpy(logits.copy()), rows).numpy().astype(dtype)
        found = reference.run(program, logits, params, [History(*ids) for ids in HISTORIES])
        # Where two sums of probabilities are rounded, an element next to the threshold may differ.
        different = np.isinf(found) != np.isinf(expected)
        assert different.sum() <= (0 if dtype is np.float32 else 4)
        np.testing.assert_allclose(found[~different], expected[~different], rtol=rtol, atol=1e-7)
