"""How the plugin checks and changes SGLang's options; a real SGLang with it is in tests/engines/sglang."""

from __future__ import annotations

import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from logitport import InvalidArgument
from logitport.integrations.sglang.engine_options import DELAY_SAMPLE
from logitport.integrations.sglang.plugin import install


class ServerArgs:
    """The part of SGLang's class that the plugin uses; each option is an attribute."""

    def __init__(self, **options: Any) -> None:
        self.enable_custom_logit_processor = True
        self.disable_overlap_schedule = False
        self.speculative_algorithm = None
        self.pp_size = 1
        vars(self).update(options)

    def check_server_args(self) -> None:
        pass


@pytest.fixture(autouse=True)
def sglang(monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the parts of SGLang that the plugin patches and reads."""
    monkeypatch.setattr(ServerArgs, "check_server_args", ServerArgs.check_server_args)
    delays = SimpleNamespace(get=lambda: os.environ.get(DELAY_SAMPLE) == "1")
    for name, content in {
        "sglang": {},
        "sglang.srt": {},
        "sglang.srt.server_args": {"ServerArgs": ServerArgs},
        "sglang.srt.arg_groups": {},
        "sglang.srt.arg_groups.overrides": {"resolved_view": lambda server_args: server_args},
        "sglang.srt.environ": {"envs": SimpleNamespace(SGLANG_ENABLE_DELAY_SAMPLE=delays)},
        "sglang.srt.managers": {},
        "sglang.srt.managers.io_struct": {
            "GenerateReqInput": type("Input", (), {"normalize_batch_and_arguments": lambda self: None})
        },
        "sglang.srt.managers.tokenizer_manager": {
            "TokenizerManager": type("TokenizerManager", (), {"generate_request": lambda self, inputs, request: None})
        },
        "sglang.srt.sampling": {},
        "sglang.srt.sampling.custom_logit_processor": {"CustomLogitProcessor": type("CustomLogitProcessor", (), {})},
        "sglang.srt.managers.schedule_batch": {"Req": type("Req", (), {"__init__": lambda self: None})},
    }.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOGITPORT_DEFAULT_PROCESSORS", "LOGITPORT_STEP_TIMEOUT_SECONDS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LOGITPORT_TARGET", "127.0.0.1:1")
    monkeypatch.setenv(DELAY_SAMPLE, "")  # so that monkeypatch restores it after the test
    monkeypatch.delenv(DELAY_SAMPLE)


@pytest.mark.parametrize(
    ("options", "delays"),
    [
        ({}, "1"),
        ({"disable_overlap_schedule": True}, "0"),
        ({"enable_custom_logit_processor": False}, "0"),
    ],
)
def test_sampling_is_delayed_where_processors_would_miss_a_token(options: dict[str, Any], delays: str) -> None:
    install()
    for server_args in (ServerArgs(), ServerArgs(enable_custom_logit_processor=False), ServerArgs(**options)):
        server_args.check_server_args()  # several engines may start in one process
    assert os.environ[DELAY_SAMPLE] == delays


def test_a_process_that_checks_no_options_delays_unless_it_inherits_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install()
    assert os.environ[DELAY_SAMPLE] == "1"
    monkeypatch.setenv(DELAY_SAMPLE, "0")
    install()
    assert os.environ[DELAY_SAMPLE] == "0"


def test_an_explicit_setting_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DELAY_SAMPLE, "1")
    install()
    ServerArgs(enable_custom_logit_processor=False).check_server_args()
    assert os.environ[DELAY_SAMPLE] == "1"
    monkeypatch.setenv(DELAY_SAMPLE, "0")
    with pytest.raises(InvalidArgument, match="the overlap schedule passes processors a history"):
        ServerArgs().check_server_args()


def test_an_invalid_variable_is_reported_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGITPORT_STEP_TIMEOUT_SECONDS", "soon")
    install()
    with pytest.raises(InvalidArgument, match="LOGITPORT_STEP_TIMEOUT_SECONDS is 'soon'"):
        ServerArgs().check_server_args()
