"""The public names of `logitport`, and what its import loads."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import logitport

PUBLIC = """
    AccessDenied Bool Client CustomLogitProcessor EditProcessor EditRequest Edits Float History Int InvalidArgument
    LimitExceeded LogitportError NameTaken NotCapturable NotFound PayloadError ProcessorFailed ProcessorRef
    ProcessorWarning Request RequestsFailed RowEdits ServerUnavailable SessionClosed StateLost TensorHistory
    TensorProcessor Tls TokenIds
"""
TOPICS = ("edits", "session", "tokenizers", "ops")


def in_a_fresh_interpreter(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=200).stdout


def test_the_public_names() -> None:
    assert logitport.__all__ == PUBLIC.split()
    assert all(hasattr(logitport, name) for name in logitport.__all__)


@pytest.mark.parametrize("topic", TOPICS)
def test_a_topic_is_one_module(topic: str) -> None:
    module = importlib.import_module(f"logitport.{topic}")
    assert all(hasattr(module, name) for name in module.__all__)
    assert not {*module.__all__} & {*PUBLIC.split()} - {"Edits", "RowEdits"}
    with pytest.raises(AttributeError, match=f"module 'logitport.{topic}' has no attribute 'Nothing'"):
        _ = module.Nothing


def test_import_loads_neither_torch_nor_the_server() -> None:
    imported = in_a_fresh_interpreter("import sys, logitport; print(*sys.modules, sep='\\n')").split()
    top = {name.partition(".")[0] for name in imported}
    assert "logitport" in top
    assert not top & {
        "torch",
        "logitport_server",
        "logitport_session",
        "logitport_sandbox",
        "logitport_testing",
        "logitport_builtins",
        "pydantic",
        "prometheus_client",
        "transformers",
    }


@pytest.mark.slow
def test_a_client_imports_sessions_only_when_it_opens_one() -> None:
    """Commands open none, and must not wait for the import."""
    imported = in_a_fresh_interpreter("import sys, logitport.client.client; print(*sys.modules, sep='\\n')").split()
    assert "logitport.client.client" in imported
    assert not {"logitport.session.session", "logitport.client.session_opening"} & set(imported)


@pytest.mark.slow
def test_numpy_logits_need_no_torch() -> None:
    """An engine without torch can use the SDK."""
    code = """
import sys, numpy as np
sys.modules["torch"] = None
from logitport import Edits, RowEdits
from logitport.edits import EditKind
from logitport.shipping.calls import apply_request
from logitport.ops import apply_edits
from logitport.shipping.request import Request
edits = RowEdits(); edits.deny([1])
logits = np.zeros((1, 4), np.float32)
apply_edits(Edits.pack([(0, edits)], 4), logits)
apply_request(logits, [Request(processors=[("disallowed_tokens", {"token_ids": [2]})])], 1)
print(logits.tolist())
"""
    assert in_a_fresh_interpreter(code).strip() == "[[0.0, -inf, 0.0, 0.0]]"
