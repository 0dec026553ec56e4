"""The reference that requests send, strings that are not accepted, and the checks before a request is scheduled."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import dill
import pytest

import logitport_builtins
from logitport.integrations.common import request_keys
from logitport.integrations.sglang import RemoteLogitProcessor, front_end_patches
from logitport.integrations.sglang.engine_options import unsupported
from logitport.integrations.sglang.guard import names_hook

REMOTE = RemoteLogitProcessor.to_str()
OTHER = logitport_builtins.DisallowedTokensLogitsProcessor.to_str()
OPTIONS = {
    "speculative_algorithm": None,
    "pp_size": 1,
    "disable_overlap_schedule": True,
    "disaggregation_mode": "null",
}
OVERLAP = {"disable_overlap_schedule": False}


def sealed(data: bytes) -> str:
    return json.dumps({"callable": data.hex()})


class TestTheReference:
    def test_it_is_small_and_unpickles_to_the_class(self) -> None:
        """As SGLang does it: dill, then a call."""
        assert len(REMOTE) < 200
        assert dill.loads(bytes.fromhex(json.loads(REMOTE)["callable"])) is RemoteLogitProcessor

    def test_it_is_the_same_wherever_it_is_made(self) -> None:
        code = "from logitport.integrations.sglang import RemoteLogitProcessor as R; import sys; "
        code += "print(R.to_str()); assert not {'torch', 'sglang'} & set(sys.modules)"
        made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert made.stdout.strip() == REMOTE

    @pytest.mark.parametrize("protocol", range(6))
    def test_any_pickle_of_it_is_accepted(self, protocol: int) -> None:
        assert names_hook(sealed(pickle.dumps(RemoteLogitProcessor, protocol=protocol)))
        assert names_hook(sealed(dill.dumps(RemoteLogitProcessor, protocol=protocol)))

    @pytest.mark.parametrize(
        "string",
        [
            OTHER,
            "",
            "{}",
            "[]",
            "7",
            '{"callable": null}',
            sealed(b""),
            sealed(pickle.dumps(RemoteLogitProcessor.to_str)),
            sealed(pickle.dumps([RemoteLogitProcessor, print])),
            sealed(pickle.dumps(exec)),
            sealed(pickle.dumps(1)),
            REMOTE + " " * 1000,
            None,
            7,
            b"{}",
            [REMOTE],
        ],
    )
    def test_other_strings_are_not_accepted(self, string: Any) -> None:
        assert not names_hook(string)


class Inputs:
    """The part of SGLang's `GenerateReqInput` that is read."""

    def __init__(self, custom_logit_processor: Any, sampling_params: Any) -> None:
        self.custom_logit_processor = custom_logit_processor
        self.sampling_params = sampling_params

    def normalize(self) -> None:
        """SGLang's own checks; nothing here."""


def admitted(processor: Any, params: Any) -> Any:
    inputs = Inputs(processor, params)
    front_end_patches._wrap_normalize(Inputs.normalize)(inputs)
    return inputs.sampling_params, inputs.custom_logit_processor


def admitted_params(processor: Any, params: Any) -> Any:
    """Return the sampling parameters of admitted inputs."""
    return admitted(processor, params)[0]


class TestAdmission:
    def test_chains_are_sent_as_text(self) -> None:
        """SGLang's messages hold no list of lists."""
        custom = {"logitport": [["disallowed_tokens", {"token_ids": [1]}], ["a/b"]], "other": 1}
        params = {"temperature": 0, "custom_params": custom}
        kept = admitted_params(REMOTE, params)
        text = kept["custom_params"].pop("logitport")
        assert json.loads(text) == [["disallowed_tokens", {"token_ids": [1]}], ["a/b", {}]]
        assert kept == {"temperature": 0, "custom_params": {"other": 1}}
        assert params["custom_params"] is custom
        assert isinstance(custom["logitport"], list)
        assert admitted_params(REMOTE, {"custom_params": {"logitport": text}}) == {"custom_params": {"logitport": text}}

    def test_a_batch(self) -> None:
        chain = {"custom_params": {"logitport": [["a/b"]]}}
        kept = admitted_params([None, REMOTE], [{"temperature": 0}, chain])
        assert kept == [{"temperature": 0}, {"custom_params": {"logitport": '[["a/b",{}]]'}}]
        assert admitted_params(REMOTE, [chain, chain]) == [kept[1], kept[1]]

    @pytest.mark.parametrize(
        "params",
        [{}, {"custom_params": None}, {"custom_params": {"other": 1}}, {"custom_params": {"logitport": None}}, None],
    )
    def test_requests_without_a_chain_pass_unchanged(self, params: Any) -> None:
        assert (admitted_params(REMOTE, params) or {}) == (params or {})
        assert admitted_params(None, params) == params

    @pytest.mark.parametrize(
        ("processor", "params", "message"),
        [
            (OTHER, {}, "this server accepts one custom_logit_processor"),
            ([REMOTE, OTHER], [{}, {}], "this server accepts one custom_logit_processor"),
            (REMOTE, {"custom_params": {"logitport": 7}}, "a list of"),
            (None, {"custom_params": {"logitport": 7}}, "a list of"),
            (REMOTE, {"beam_width": 2}, "beam search"),
            (None, {"beam_width": 2, "custom_params": {"logitport": [["a/b"]]}}, "beam search"),
            (OTHER, {"custom_params": {"logitport": [["a/b"]]}}, "this server accepts one custom_logit_processor"),
        ],
    )
    def test_refused_requests(self, processor: Any, params: Any, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            admitted(processor, params)

    @pytest.mark.parametrize("processor", [None, "", REMOTE])
    def test_the_key_is_enough(self, processor: Any) -> None:
        """The plugin adds the reference; without the key it adds none."""
        chain, none = {"custom_params": {"logitport": [["a/b"]]}}, {"custom_params": {"other": 1}}
        text = {"custom_params": {"logitport": '[["a/b",{}]]'}}
        assert admitted(processor, chain) == (text, REMOTE)
        assert admitted([processor, None], [chain, none]) == ([text, none], [REMOTE, None])
        assert admitted(None, [chain, none]) == ([text, none], [REMOTE, None])
        assert admitted(processor, none) == (none, processor)

    @pytest.mark.parametrize("processor", [None, REMOTE])
    def test_a_mistyped_key_is_logged_or_refused(
        self, processor: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(request_keys, "_warned", set())
        mistyped = {"custom_params": {"logitprot": "[]", "thinking_budget": 9}}
        assert admitted(processor, mistyped) == (mistyped, processor)
        (message,) = caplog.messages
        assert "the key 'logitprot' in custom_params" in message
        monkeypatch.setenv("LOGITPORT_REQUEST_KEYS", "none")
        with pytest.raises(ValueError, match=r"custom_params has the key 'logitprot'.*write 'logitport'"):
            admitted(processor, mistyped)
        assert admitted(processor, {"custom_params": {"thinking_budget": 9}})[1] == processor

    def test_with_a_default_the_processor_need_not_be_sent(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("LOGITPORT_DEFAULT_PROCESSORS", '[["a/b"]]')
        assert admitted(None, {"custom_params": {"other": 1}}) == ({"custom_params": {"other": 1}}, None)
        kept = admitted_params(None, {"custom_params": {"logitport": []}})
        assert kept == {"custom_params": {"logitport": "[]"}}


class Req:
    """The part of SGLang's `Req` that is read."""

    def __init__(self, rid: str, sampling_params: Any, custom_logit_processor: str | None = None) -> None:
        self.rid = rid
        self.sampling_params = sampling_params
        self.custom_logit_processor = custom_logit_processor


class TestTheScheduler:
    @pytest.fixture(autouse=True)
    def constants(self, monkeypatch: pytest.MonkeyPatch) -> None:
        constants = SimpleNamespace(HEALTH_CHECK_RID_PREFIX="HEALTH")
        for name in ("sglang", "sglang.srt"):
            monkeypatch.setitem(sys.modules, name, SimpleNamespace(__path__=[]))
        monkeypatch.setitem(sys.modules, "sglang.srt.constants", constants)

    def make(self, custom_params: Any, *, rid: str = "r", **options: Any) -> Req:
        req = Req.__new__(Req)
        given = SimpleNamespace(custom_params=custom_params)
        front_end_patches._wrap_init(Req.__init__)(req, rid, given, **options)
        assert given.custom_params == custom_params
        return req

    def test_a_processor_comes_with_parameters(self) -> None:
        """SGLang passes its request to processors in the parameters, if there are any."""
        assert self.make(None, custom_logit_processor=REMOTE).sampling_params.custom_params == {}
        assert self.make({"a": 1}, custom_logit_processor=REMOTE).sampling_params.custom_params == {"a": 1}
        assert self.make(None).sampling_params.custom_params is None
        assert self.make(None).custom_logit_processor is None

    def test_the_operators_default(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("LOGITPORT_DEFAULT_PROCESSORS", '[["disallowed_tokens", {"token_ids": [1]}]]')
        req = self.make(None)
        assert req.custom_logit_processor == REMOTE
        assert req.sampling_params.custom_params == {}
        assert self.make(None, custom_logit_processor=OTHER).custom_logit_processor == OTHER
        assert self.make(None, rid="HEALTH_1").custom_logit_processor is None


@pytest.mark.parametrize(
    ("changed", "delays", "message"),
    [
        ({}, False, ""),
        ({"disable_overlap_schedule": False}, True, ""),
        ({"disable_overlap_schedule": False}, False, "overlap schedule"),
        ({"speculative_algorithm": "NGRAM"}, True, ""),
        ({"speculative_algorithm": "EAGLE"}, True, ""),
        ({"speculative_algorithm": "DFLASH"}, True, ""),
        ({"speculative_algorithm": "DSPARK", **OVERLAP}, True, ""),
        ({"speculative_algorithm": "UNO"}, True, "--speculative-algorithm UNO: SGLang does not call processors"),
        ({"speculative_algorithm": "NGRAM", **OVERLAP}, True, ""),
        ({"speculative_algorithm": "NGRAM", **OVERLAP}, False, ""),
        ({"speculative_algorithm": "NGRAM", **OVERLAP, "disaggregation_mode": "decode"}, True, ""),
        ({"speculative_algorithm": "NGRAM", **OVERLAP, "disaggregation_mode": "prefill"}, True, "in a prefill engine"),
        ({"pp_size": 2}, True, ""),
        ({"speculative_algorithm": "NGRAM"}, None, "--speculative-algorithm NGRAM: SGLang does not call processors"),
        ({"pp_size": 2}, None, "--pp-size 2"),
    ],
)
def test_engines_that_are_refused(changed: dict[str, Any], delays: bool | None, message: str) -> None:
    """None: without the plugin, which delays the sampling and verifies drafts."""
    plugin = delays is not None
    options = (OPTIONS | changed).__getitem__
    reason = unsupported(options, delays_sampling=bool(delays), has_plugin=plugin, verifies=plugin)
    assert message in reason
    assert bool(reason) == bool(message)


def test_nothing_happens_without_a_target(monkeypatch: pytest.MonkeyPatch) -> None:
    from logitport.integrations.sglang.plugin import install

    monkeypatch.delenv("LOGITPORT_TARGET", raising=False)
    install()
    assert "sglang" not in sys.modules
