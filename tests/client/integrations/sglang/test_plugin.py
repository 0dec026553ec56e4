"""How the plugin checks and changes SGLang's options; a real SGLang with it is in tests/engines/sglang."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from logitport import InvalidArgument
from logitport.integrations.sglang import meta_info, speculation
from logitport.integrations.sglang.engine_options import DELAY_SAMPLE
from logitport.integrations.sglang.plugin import install
from logitport.report import Report, ReportedProcessor


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


def _update_meta_info(
    self: object, meta_info: dict[str, Any], state: object, fields: dict[str, Any], index: int, reason: object
) -> None:
    """As SGLang's: adds up lists."""
    for key, values in fields.items():
        meta_info.setdefault(key, []).extend(values[index])


def _ignore(*_: object) -> None:
    pass


def _create_worker(_algorithm: object, server_args: ServerArgs) -> type:
    """As SGLang's: imports the worker's module, which has `eagle_sample` by its name."""
    for name in ("eagle_utils", "ngram_worker"):
        module = ModuleType(name)
        vars(module)["eagle_sample"] = lambda *args: (None, None, args)
        sys.modules[f"sglang.srt.speculative.{name}"] = module
    return object


@pytest.fixture(autouse=True)
def sglang(monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the parts of SGLang that the plugin patches and reads."""
    monkeypatch.setattr(ServerArgs, "check_server_args", ServerArgs.check_server_args)
    delays = SimpleNamespace(get=lambda: os.environ.get(DELAY_SAMPLE) == "1")
    envs = SimpleNamespace(SGLANG_ENABLE_DELAY_SAMPLE=delays, SGLANG_RUST_SERVER=SimpleNamespace(get=lambda: False))
    add_info = {"build_additional_customized_info": lambda self, reqs: {"of_sglang": [[1]] * len(reqs)}}
    of_manager = {"generate_request": lambda *_: None, "update_request_meta_info": _update_meta_info}
    classes: dict[str, tuple[str, dict[str, Any]]] = {
        "managers.io_struct": ("GenerateReqInput", {"normalize_batch_and_arguments": _ignore}),
        "managers.tokenizer_manager": ("TokenizerManager", of_manager),
        "managers.scheduler_components.output_streamer": (
            "SchedulerOutputStreamer",
            {"has_additional_customized_info": False, **add_info},
        ),
        "managers.scheduler_pp_mixin": (
            "SchedulerPPMixin",
            {"_pp_prepare_tensor_dict": _ignore, "_pp_prep_batch_result": _ignore},
        ),
        "managers.schedule_batch": ("Req", {"__init__": _ignore}),
        "speculative.spec_info": ("SpeculativeAlgorithm", {"create_worker": _create_worker}),
        "sampling.custom_logit_processor": ("CustomLogitProcessor", {}),
    }
    contents: dict[str, dict[str, Any]] = {
        "server_args": {"ServerArgs": ServerArgs},
        "arg_groups.overrides": {"resolved_view": lambda server_args: server_args},
        "environ": {"envs": envs},
        **{name: {cls: type(cls, (), members)} for name, (cls, members) in classes.items()},
    }
    contents["managers.tokenizer_manager"]["supports_sampling_mask"] = lambda serialized: False
    folders = {name.rpartition(".")[0] for name in contents} - {""}
    for name in ("sglang", "sglang.srt", *(f"sglang.srt.{one}" for one in (*sorted(folders), *contents))):
        module = ModuleType(name)
        vars(module).update(contents.get(name.removeprefix("sglang.srt."), {}))
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


def test_drafts_are_verified_with_processors_once_a_worker_is_created(monkeypatch: pytest.MonkeyPatch) -> None:
    install()
    algorithm = sys.modules["sglang.srt.speculative.spec_info"].SpeculativeAlgorithm
    for name in ("eagle_utils", "ngram_worker"):
        monkeypatch.setitem(sys.modules, f"sglang.srt.speculative.{name}", None)
        monkeypatch.delitem(sys.modules, f"sglang.srt.speculative.{name}")
    assert not speculation.installed()
    assert algorithm().create_worker(ServerArgs()) is object
    assert speculation.installed()
    late = ModuleType("sglang.srt.speculative.eagle_worker_common")
    vars(late)["eagle_sample"] = sampled = lambda *args: args
    monkeypatch.setitem(sys.modules, late.__name__, late)
    assert speculation.installed()
    assert vars(late)["eagle_sample"] is not sampled


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
    with pytest.raises(InvalidArgument, match="overlap schedule"):
        ServerArgs().check_server_args()


@pytest.mark.parametrize("name", ["LOGITPORT_STEP_TIMEOUT_SECONDS", "LOGITPORT_REPORT"])
def test_an_invalid_variable_is_reported_at_the_start(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "soon")
    with suppress(InvalidArgument):  # SGLang logs it
        install()
    with pytest.raises(InvalidArgument, match=f"{name} is 'soon'"):
        ServerArgs().check_server_args()


class Ended(SimpleNamespace):
    """A request of the scheduler."""

    def finished(self) -> bool:
        return bool(self.ended)


def test_reports_reach_the_meta_info_of_ended_requests() -> None:
    install()
    streamer = sys.modules["sglang.srt.managers.scheduler_components.output_streamer"].SchedulerOutputStreamer()
    manager = sys.modules["sglang.srt.managers.tokenizer_manager"].TokenizerManager()
    reqs = [Ended(ended=True), Ended(ended=False), Ended(ended=True)]
    for req in reqs[:2]:
        meta_info.remember(req, SimpleNamespace(report=Report((), rows_applied=7)))  # type: ignore[arg-type]
    assert streamer.has_additional_customized_info
    fields = streamer.build_additional_customized_info(reqs)
    found: list[dict[str, Any]] = [{}, {}, {}]
    for index, one in enumerate(found):
        manager.update_request_meta_info(one, None, fields, index, None)
    assert found == [{"of_sglang": [1], "logitport": Report((), rows_applied=7).to_json()}, *[{"of_sglang": [1]}] * 2]
    assert streamer.build_additional_customized_info(reqs[1:]) == {"of_sglang": [[1]] * 2}


@pytest.mark.parametrize("shown", ["on", "full"])
def test_reports_have_parameters_if_they_are_full(monkeypatch: pytest.MonkeyPatch, shown: str) -> None:
    monkeypatch.setenv("LOGITPORT_REPORT", shown)
    install()
    streamer = sys.modules["sglang.srt.managers.scheduler_components.output_streamer"].SchedulerOutputStreamer()
    req, report = Ended(ended=True), Report((ReportedProcessor("min_p", "", {"min_p": 0.1}),))
    meta_info.remember(req, SimpleNamespace(report=report))  # type: ignore[arg-type]
    fields = streamer.build_additional_customized_info([req])
    assert fields["logitport"] == [[report.to_json(with_params=shown == "full")]]


def test_without_reports_outputs_are_not_patched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGITPORT_REPORT", "off")
    install()
    streamer = sys.modules["sglang.srt.managers.scheduler_components.output_streamer"].SchedulerOutputStreamer
    assert not streamer.has_additional_customized_info
