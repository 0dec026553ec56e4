"""The last recipe of docs/processors.md: signed versions, used by name in vLLM's HTTP server."""

from __future__ import annotations

import importlib
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.conftest import COMMAND
from tests.engines.vllm.http import complete, run_http_server

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from tests.conftest import RunningServer

EXAMPLES = Path(__file__).parents[3] / "examples" / "processors"
PERIOD = 17


def test_versions_by_name(
    checkpoint: Path, start_server: Callable[..., RunningServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    for_vllm = importlib.import_module("ask_engine").for_vllm
    key, keys = tmp_path / "team.key", tmp_path / "keys"
    keys.mkdir()
    subprocess.run([COMMAND, "payload", "keygen", str(key)], check=True, stdout=subprocess.DEVNULL)
    key.with_name("team.key.pub").rename(keys / "team.key.pub")
    server = start_server("--enable-custom-logit-processor", "--trusted-keys", str(keys))
    for version, file in (("v1", "end_sentence.py"), ("v2", "end_sentence_v2.py")):
        register = [COMMAND, "processors", "register", server.target, f"{EXAMPLES / file}:EndSentence"]
        register += ["--name", f"team/end-sentence:{version}", "--sign-key", str(key), "--shared"]
        subprocess.run(register, check=True, stdout=subprocess.DEVNULL)

    with run_http_server(checkpoint, tmp_path / "vllm", {"LOGITPORT_TARGET": server.target}) as url:

        def tokens(version: str, **params: Any) -> list[int]:
            chain = [[f"team/end-sentence:{version}", {"period": PERIOD, **params}]]
            status, answer = complete(url, ignore_eos=True, **for_vllm(chain))
            assert status == 200, answer
            found: list[int] = answer["choices"][0]["token_ids"]
            return found

        assert [token == PERIOD for token in tokens("v1", max_ids=3)] == [False, False, False, True] * 3
        assert tokens("v2", max_ids=3, slope=100) == [PERIOD] * 12
        status, answer = complete(url, **for_vllm([["team/end-sentence:v1", {"max_ids": 0}]]))
        assert status == 400
        assert "max_ids" in answer["error"]["message"]
