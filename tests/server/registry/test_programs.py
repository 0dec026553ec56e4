"""Registration of programs: without the option for code, verified, and otherwise as any payload."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest

from logitport import InvalidArgument, LimitExceeded, NameTaken, PayloadError, payload
from logitport_builtins import BUILTINS
from logitport_programs.program import Program, Value
from logitport_proto import common_pb2
from logitport_runner.local_registry import LocalRegistry
from logitport_server.registry.policy import PayloadPolicy
from logitport_server.registry.stores.sqlite import SqliteStore
from logitport_session.trust.principals import APPLY, REGISTER, Principal
from tests.programs.runtime import build
from tests.toy_processors import Unchanged

if TYPE_CHECKING:
    from pathlib import Path

ANN, BOB = (Principal(name, frozenset({APPLY, REGISTER})) for name in ("ann", "bob"))
MIN_P, TOP_K = build.min_p(), build.top_k()


def sealed(program: Program, class_name: str = "MinP") -> str:
    return payload.seal_program(program.to_bytes(), class_name)


ONE, TWO = sealed(MIN_P.program), sealed(TOP_K.program, "TopK")


def make_registry(
    *, allow: bool = False, programs: bool = True, max_bytes: int = 1 << 20, max_owned: int = 8, **options: Any
) -> LocalRegistry:
    keys = options.pop("trusted_keys", None)
    policy = PayloadPolicy(allow_shipped=allow, allow_programs=programs, max_bytes=max_bytes, trusted_keys=keys)
    return LocalRegistry(policy, max_registered=8, max_owned=max_owned, **options)


def named(**by: str) -> common_pb2.Processor:
    return common_pb2.Processor(**by)


def test_a_program_needs_no_option_for_code() -> None:
    registry = make_registry()
    info = registry.register(ONE, "team/min-p", ANN, replace=False)
    assert (info.digest, info.dialect, info.class_name) == (MIN_P.program.digest, "program", "MinP")
    assert (info.python, info.dill, info.size_bytes) == ("", "", len(MIN_P.program.to_bytes()))
    for by in (named(name="team/min-p"), named(digest=info.digest), named(payload=ONE)):
        source = registry.resolve(by, ANN)
        assert (source.key, source.program, source.domain) == (info.digest, MIN_P, None)
    with pytest.raises(PayloadError, match=r"--enable-custom-logit-processor; it accepts programs"):
        registry.register(Unchanged.to_str(), "", ANN, replace=False)


def test_the_result_of_the_verification_is_kept() -> None:
    registry = make_registry()
    first = registry.resolve(named(payload=ONE), ANN).program
    assert registry.resolve(named(payload=ONE), BOB).program is first


@pytest.mark.parametrize("allow", [False, True])
def test_no_programs(allow: bool) -> None:
    registry = make_registry(allow=allow, programs=False)
    with pytest.raises(PayloadError, match="--no-programs"):
        registry.register(ONE, "", ANN, replace=False)
    with pytest.raises(PayloadError, match="--no-programs"):
        registry.resolve(named(payload=ONE))


@pytest.mark.parametrize(
    ("serialized", "error", "message"),
    [
        (json.dumps({"program": "00ff"}), InvalidArgument, "are not a program"),
        (json.dumps({"program": ""}), InvalidArgument, "version 0 of the operators"),
        (json.dumps({"program": MIN_P.program.to_bytes().hex() + "1200"}), InvalidArgument, "canonical form"),
        (json.dumps({"program": "8004952e"}), InvalidArgument, "version 0 of the operators"),
        (sealed(Program("x", (Value("logits"), Value("exp", (7,))))), InvalidArgument, "value 1 of program 'x'"),
        (sealed(Program("x", (Value("logits"),) * 600)), LimitExceeded, "600 values"),
        (sealed(Program("x" * (1 << 20), (Value("logits"),))), LimitExceeded, "--max-payload-bytes"),
        (json.dumps({"program": "xy"}), PayloadError, '"program" must hold hexadecimal digits'),
        (json.dumps({"program": "08", "callable": "80"}), PayloadError, 'a "callable" and a "program"'),
        ('not JSON, but "program"', PayloadError, "not JSON"),
        ("not JSON", PayloadError, "--enable-custom-logit-processor"),
        (json.dumps({"callable": "xy", "dialect": "program"}), PayloadError, "it accepts programs"),
    ],
)
def test_bad_programs(serialized: str, error: type[Exception], message: str) -> None:
    registry = make_registry()
    for refused in (
        lambda: registry.register(serialized, "team/x", ANN, replace=False),
        lambda: registry.resolve(named(payload=serialized)),
    ):
        with pytest.raises(error, match=message):
            refused()
    assert len(registry.describe_all(ANN)) == len(BUILTINS)


def test_restarts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for programs in (True, False, True):
        store = SqliteStore(tmp_path / "store")
        registry = make_registry(programs=programs, allow=True, store=store)
        if programs and not caplog.records:
            registry.register(ONE, "team/x", ANN, replace=False)
        with caplog.at_level(logging.WARNING):
            known = [info.digest for info in registry.describe_all(ANN) if not info.builtin]
        assert known == ([MIN_P.program.digest] if programs else [])
        if programs:
            assert registry.resolve(named(name="team/x"), ANN).program == MIN_P
        else:
            assert any("--no-programs" in record.getMessage() for record in caplog.records)
            with pytest.raises(NameTaken):
                registry.register(Unchanged.to_str(), "team/x", BOB, replace=False)
        store.close()


def test_an_installed_program() -> None:
    registry = make_registry(programs=False, installed={**BUILTINS, "min_p": MIN_P.program})
    info = registry.describe("min_p")
    assert (info.builtin, info.shared, info.dialect, info.class_name) == (True, True, "program", "min_p")
    assert (info.digest, list(info.names), info.size_bytes) == ("", ["min_p"], 0)
    source = registry.resolve(named(builtin="min_p"))
    assert (source.key, source.program, source.domain) == ("min_p", MIN_P, None)
    assert registry.installed.is_fast("min_p")
    assert "min_p" in [name for info in registry.describe_all() for name in info.names]


def test_an_installed_program_that_breaks_a_rule() -> None:
    with pytest.raises(InvalidArgument, match="value 1"):
        make_registry(installed={"x": Program("x", (Value("logits"), Value("exp", (7,))))})
