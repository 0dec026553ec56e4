"""The reference that requests send, strings that are not accepted, and the checks before a request is scheduled."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import weakref
from types import SimpleNamespace
from typing import Any

import dill
import pytest

import logitport_builtins
from logitport.integrations.sglang import RemoteLogitProcessor, front_end_patches
from logitport.integrations.sglang.engine_options import unsupported
from logitport.integrations.sglang.guard import names_hook

REMOTE = RemoteLogitProcessor.to_str()
OTHER = logitport_builtins.DisallowedTokensLogitsProcessor.to_str()
OPTIONS = {"speculative_algorithm": None, "pp_size": 1, "disable_overlap_schedule": True}


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

    def test_long_strings_are_not_kept(self) -> None:
        class Long(str):
            __slots__ = ("__weakref__",)

        string = Long(REMOTE + " " * 1000)
        kept = weakref.ref(string)
        assert not names_hook(string)
        del string
        assert kept() is None


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
    return inputs.sampling_params


class TestAdmission:
    def test_chains_are_sent_as_text(self) -> None:
        """SGLang's messages hold no list of lists."""
        custom = {"logitport": [["disallowed_tokens", {"token_ids": [1]}], ["a/b"]], "other": 1}
        params = {"temperature": 0, "custom_params": custom}
        kept = admitted(REMOTE, params)
        text = kept["custom_params"].pop("logitport")
        assert json.loads(text) == [["disallowed_tokens", {"token_ids": [1]}], ["a/b", {}]]
        assert kept == {"temperature": 0, "custom_params": {"other": 1}}
        assert params["custom_params"] is custom
        assert isinstance(custom["logitport"], list)
        assert admitted(REMOTE, {"custom_params": {"logitport": text}}) == {"custom_params": {"logitport": text}}

    def test_a_batch(self) -> None:
        chain = {"custom_params": {"logitport": [["a/b"]]}}
        kept = admitted([None, REMOTE], [{"temperature": 0}, chain])
        assert kept == [{"temperature": 0}, {"custom_params": {"logitport": '[["a/b",{}]]'}}]
        assert admitted(REMOTE, [chain, chain]) == [kept[1], kept[1]]

    @pytest.mark.parametrize(
        "params",
        [{}, {"custom_params": None}, {"custom_params": {"other": 1}}, {"custom_params": {"logitport": None}}, None],
    )
    def test_requests_without_a_chain_pass_unchanged(self, params: Any) -> None:
        assert (admitted(REMOTE, params) or {}) == (params or {})
        assert admitted(None, params) == params

    @pytest.mark.parametrize(
        ("processor", "params", "message"),
        [
            (OTHER, {}, "this server accepts one custom_logit_processor"),
            ([REMOTE, OTHER], [{}, {}], "this server accepts one custom_logit_processor"),
            (REMOTE, {"custom_params": {"logitport": 7}}, "a list of"),
            (
                None,
                {"custom_params": {"logitport": [["a/b"]]}},
                "has no custom_logit_processor, so it would have no effect",
            ),
            (REMOTE, {"beam_width": 2}, "beam search"),
        ],
    )
    def test_refused_requests(self, processor: Any, params: Any, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            admitted(processor, params)

    def test_with_a_default_the_processor_need_not_be_sent(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("LOGITPORT_DEFAULT_PROCESSORS", '[["a/b"]]')
        kept = admitted(None, {"custom_params": {"logitport": []}})
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
        ({"speculative_algorithm": "EAGLE"}, True, "--speculative-algorithm EAGLE"),
        ({"pp_size": 2}, True, "--pp-size 2"),
    ],
)
def test_engines_that_are_refused(changed: dict[str, Any], delays: bool, message: str) -> None:
    reason = unsupported((OPTIONS | changed).__getitem__, delays_sampling=delays)
    assert message in reason
    assert bool(reason) == bool(message)


def test_nothing_happens_without_a_target(monkeypatch: pytest.MonkeyPatch) -> None:
    from logitport.integrations.sglang.plugin import install

    monkeypatch.delenv("LOGITPORT_TARGET", raising=False)
    install()
    assert "sglang" not in sys.modules
