"""Strings that would run code in SGLang: they run without the guard, and do not with the launcher."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import logitport_builtins
from tests.engines.sglang.conftest import GUARDED, Refused

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tests.engines.sglang.conftest import Engine

PROMPT = [20, 30, 40]
_MASK = {"return_sampling_mask": True}


class _Touches:
    """Creates a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> object:
        return os.mkdir, (str(self._path),)


def hostile(path: Path) -> str:
    return json.dumps({"callable": pickle.dumps(_Touches(path), protocol=4).hex()})


def test_without_the_guard_the_string_runs_code(native: Engine, tmp_path: Path) -> None:
    """Show that the string of the other tests is harmful.

    SGLang's scheduler would not survive it, but its front end unpickles it too, to check it against this option.
    """
    with pytest.raises(Refused):
        native.post(PROMPT, hostile(tmp_path / "touched"), {}, extra_fields=_MASK, top_k=5)
    assert (tmp_path / "touched").exists()


@pytest.mark.parametrize("extra_fields", [{}, _MASK])
def test_with_the_guard_the_front_end_refuses_it(
    guarded: Engine, tmp_path: Path, extra_fields: dict[str, bool]
) -> None:
    with pytest.raises(Refused) as refused:
        guarded.post(PROMPT, hostile(tmp_path / "touched"), {}, extra_fields=extra_fields, top_k=5)
    assert refused.value.status == 400
    assert "RemoteLogitProcessor.to_str()" in str(refused.value)
    assert not (tmp_path / "touched").exists()
    assert len(guarded.generate(PROMPT)) == 64


@pytest.mark.parametrize(
    "string",
    [
        logitport_builtins.DisallowedTokensLogitsProcessor.to_str(),
        "not JSON",
        "{}",
        '{"callable": 7}',
    ],
)
def test_other_strings_are_refused(guarded: Engine, string: str) -> None:
    with pytest.raises(Refused) as refused:
        guarded.generate(PROMPT, string, {"token_ids": [1]})
    assert refused.value.status == 400


# SGLang without the front end's check: its front end lets every string pass, as another front end might.
_WITHOUT_CHECK = """
import sys
if __name__ == "__main__":
    import sglang
    from sglang.srt.managers.io_struct import GenerateReqInput
    from sglang.srt.plugins import load_plugins
    load_plugins()
    GenerateReqInput.normalize_batch_and_arguments = GenerateReqInput.normalize_batch_and_arguments.__wrapped__
    engine = sglang.Engine(
        model_path=sys.argv[1], enable_custom_logit_processor=True, device="cpu", attention_backend="torch_native",
        sampling_backend="pytorch", grammar_backend="none", dtype="float32", max_total_tokens=1024,
        mem_fraction_static=0.1, skip_server_warmup=True,
    )
    greedy = {"temperature": 0, "max_new_tokens": 8}
    for custom_params in ({}, None):
        try:
            engine.generate(
                input_ids=[20, 30], sampling_params={**greedy, "custom_params": custom_params},
                custom_logit_processor=sys.argv[2],
            )
        except ValueError as error:
            print("refused:", error)
    print("still serves:", len(engine.generate(input_ids=[20, 30], sampling_params=greedy)["output_ids"]))
    engine.shutdown()
"""


def test_the_scheduler_refuses_it_too(checkpoint: Path, tmp_path: Path) -> None:
    script = tmp_path / "without_check.py"
    script.write_text(_WITHOUT_CHECK)
    variables = os.environ | {"LOGITPORT_TARGET": "127.0.0.1:1", "HF_HUB_OFFLINE": "1"}
    ran = subprocess.run(
        [sys.executable, script, checkpoint, hostile(tmp_path / "touched")],
        capture_output=True,
        text=True,
        env=variables,
        timeout=1200,
        check=False,
    )
    assert ran.stdout.count("refused: logitport: PayloadError: this server accepts one") == 2, ran.stdout + ran.stderr
    assert "still serves: 8" in ran.stdout
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize(
    ("options", "variables", "message"),
    [
        ((), {"SGLANG_PLUGINS": "another"}, "if SGLANG_PLUGINS is set, add logitport there"),
        ((), {"SGLANG_ENABLE_DELAY_SAMPLE": "0"}, "the overlap schedule passes processors a history without"),
        ((), {"LOGITPORT_TARGET": "http://h:1"}, "is a URL"),
        ((), {"LOGITPORT_DEFAULT_PROCESSORS": "nonsense"}, "LOGITPORT_DEFAULT_PROCESSORS: not JSON"),
    ],
)
def test_unsupported_options_stop_the_start(
    sglang: Callable[..., AbstractContextManager[Engine]],
    options: tuple[str, ...],
    variables: dict[str, str],
    message: str,
) -> None:
    with pytest.raises(RuntimeError) as stopped, sglang(GUARDED, *options, **{"LOGITPORT_TARGET": "h:1"} | variables):
        pass
    assert message in str(stopped.value)
