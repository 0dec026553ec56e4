"""Payload strings of earlier versions still load, and their processors return the same rows."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import dill
import pytest
import torch

from logitport import Client, CustomLogitProcessor
from logitport.integrations.sglang import RemoteLogitProcessor
from tests.stored.decoding import PROMPT, STEPS, rows_of, sample_logits
from tests.stored.reading import VERSIONS, each, skip_other_python

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conftest import RunningServer

# The dialects that `from_str` loads. A string written by SGLang has no dialect.
_OF_CLASSES = [
    case
    for case in each("payloads/*.json")
    if json.loads(case.values[0]["serialized"]).get("dialect", "sglang") in ("edits", "sglang")
]


@pytest.mark.parametrize("case", each("payloads/*.json"))
def test_a_stored_payload_returns_the_same_rows(client: Client, case: dict[str, Any]) -> None:
    skip_other_python(case)
    chain = [(case["serialized"], case["params"])]
    assert rows_of(client, chain, case["sampling_params"]) == case["rows"]


@pytest.mark.parametrize("case", each("payloads/*.json"))
def test_a_stored_payload_can_be_registered(client: Client, case: dict[str, Any]) -> None:
    skip_other_python(case)
    ref = client.register(case["serialized"], name="stored/payload", replace=True)
    stored = json.loads(case["serialized"])
    assert (ref.python, ref.class_name, ref.dialect) == tuple(
        stored.get(key, "") for key in ("python", "class", "dialect")
    )
    client.delete(ref.digest)


@pytest.mark.parametrize("case", _OF_CLASSES)
def test_a_stored_class_works_without_a_service(case: dict[str, Any]) -> None:
    skip_other_python(case)
    processor = CustomLogitProcessor.from_str(case["serialized"])
    for length, row in enumerate(case["rows"], 1):
        output = [token_id for new in STEPS[:length] for token_id in new]
        request = SimpleNamespace(rid="r", origin_input_ids=[*PROMPT], output_ids=output)
        logits = processor(torch.from_numpy(sample_logits(1)), [{**case["params"], "__req__": request}])
        assert logits.tolist() == [row]


@pytest.mark.parametrize("version", VERSIONS, ids=lambda folder: folder.name)
def test_the_string_for_sglangs_engine_is_unchanged(version: Path) -> None:
    """SGLang loads the string with dill, and batches requests with equal strings."""
    stored = (version / "sglang-engine.json").read_text().strip()
    assert dill.loads(bytes.fromhex(json.loads(stored)["callable"])) is RemoteLogitProcessor
    assert RemoteLogitProcessor.to_str() == stored


@pytest.mark.slow
@pytest.mark.parametrize(
    "folder",
    [
        pytest.param(folder, id=f"{version.name}-{folder.name}")
        for version in VERSIONS
        for folder in sorted(version.glob("signed*"))
    ],
)
def test_a_stored_signature_is_still_valid(
    start_server: Callable[..., RunningServer],
    tmp_path: Path,
    folder: Path,
) -> None:
    case = json.loads((folder / "payload.json").read_text())
    skip_other_python(case)
    keys = tmp_path / "keys"
    keys.mkdir()
    shutil.copy(folder / "team.pub", keys)
    with Client(start_server("--enable-custom-logit-processor", "--trusted-keys", str(keys)).target) as client:
        assert client.register(case["serialized"], name=case["name"]).names == (case["name"],)
        for processor in (case["serialized"], case["name"]):
            assert rows_of(client, [(processor, case["params"])]) == case["rows"]
