"""Processors by name and digest."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import pytest

from logitport import (
    CustomLogitProcessor,
    InvalidArgument,
    InvalidName,
    LimitExceeded,
    MalformedPayload,
    NameTaken,
    NotPermitted,
    PayloadNotAllowed,
    PythonMismatch,
    UnknownProcessor,
)
from logitport_builtins import BUILTINS
from logitport_proto import common_pb2
from logitport_server.principals import ADMIN, APPLY, REGISTER, Principal, TrustDomain
from logitport_server.registry.policy import PayloadPolicy
from logitport_server.registry.registry import Registry
from logitport_server.registry.store import Store

if TYPE_CHECKING:
    from pathlib import Path


class One(CustomLogitProcessor):
    def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
        return logits


class Two(CustomLogitProcessor):
    def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
        return logits + 1


ONE, TWO = One.to_str(), Two.to_str()


def registry(*, allow: bool = True, most: int = 8, owned: int = 8, max_bytes: int = 1 << 20) -> Registry:
    policy = PayloadPolicy(allow_shipped=allow, max_bytes=max_bytes)
    return Registry(policy, max_registered=most, max_owned=owned)


def named(**by: str) -> common_pb2.Processor:
    return common_pb2.Processor(**by)


def test_the_same_payload_is_kept_once() -> None:
    kept = registry()
    first = kept.register(ONE, "", replace=False)
    again = kept.register(ONE, "team/one", replace=False)
    label_less = kept.register(json.dumps({"callable": json.loads(ONE)["callable"]}), "team/uno", replace=False)
    assert first.digest == again.digest == label_less.digest
    assert list(label_less.names) == ["team/one", "team/uno"]
    assert label_less.registered_at == first.registered_at > 0
    assert len(kept.describe_all()) == len(BUILTINS) + 1


def test_a_description() -> None:
    info = registry().register(ONE, "team/one", replace=False)
    assert info.python == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert info.dill
    assert info.size_bytes == len(json.loads(ONE)["callable"]) // 2
    assert not info.builtin
    assert (info.class_name, info.dialect) == ("One", "sglang")


def test_what_is_installed_tells_its_dialect_too() -> None:
    info = registry().describe("thinking_budget")
    assert (info.class_name, info.dialect) == ("ThinkingBudget", "edits")
    assert all(one.class_name and one.dialect for one in registry().describe_all())


@pytest.mark.parametrize("name", ["a/b", "team/ban-french:v2", "a/b/c:1.0", "0/_x".replace("_", "0"), "a/" + "b" * 126])
def test_names(name: str) -> None:
    kept = registry()
    digest = kept.register(ONE, name, replace=False).digest
    assert kept.describe(name).digest == digest
    assert kept.resolve(named(name=name)).key == digest


@pytest.mark.parametrize(
    "name",
    [
        *("x", "thinking_budget", "Team/x", "team/", "/x", "a//b", "a/b:", "a/b:c:d", ":x", "a/b c", "a/é", "a/b\n"),
        *("../x", "a/-b", "a/" + "b" * 127, "0123456789abcdef" * 4),
    ],
)
def test_what_is_no_name(name: str) -> None:
    kept = registry()
    with pytest.raises(InvalidName, match=r"namespace/name\[:tag\]"):
        kept.register(ONE, name, replace=False)
    assert len(kept.describe_all()) == len(BUILTINS)


def test_a_name_is_taken_until_it_is_replaced() -> None:
    kept = registry()
    one = kept.register(ONE, "team/x", replace=False).digest
    assert kept.register(ONE, "team/x", replace=False).digest == one
    with pytest.raises(NameTaken, match=rf"'team/x' is bound to One \(sha256:{one[:12]}\); .* replace"):
        kept.register(TWO, "team/x", replace=False)
    two = kept.register(TWO, "team/x", replace=True)
    assert kept.resolve(named(name="team/x")).key == two.digest
    assert list(kept.describe(one).names) == []


def test_a_name_that_is_refused_registers_nothing() -> None:
    kept = registry()
    kept.register(ONE, "team/x", replace=False)
    with pytest.raises(NameTaken):
        kept.register(TWO, "team/x", replace=False)
    assert len(kept.describe_all()) == len(BUILTINS) + 1


def test_the_registry_is_bounded() -> None:
    kept = registry(most=1)
    kept.register(ONE, "", replace=False)
    kept.register(ONE, "team/again", replace=False)
    with pytest.raises(LimitExceeded, match=r"holds 1 processors, .* --max-registered-processors"):
        kept.register(TWO, "", replace=False)
    kept.delete(kept.register(ONE, "", replace=False).digest)
    kept.register(TWO, "", replace=False)


def test_built_ins_first_then_by_name() -> None:
    kept = registry()
    kept.register(TWO, "b/two", replace=False)
    kept.register(ONE, "a/one", replace=False)
    assert [next(iter(info.names)) for info in kept.describe_all()] == [*sorted(BUILTINS), "a/one", "b/two"]


def test_deleting_a_name_keeps_the_digest() -> None:
    kept = registry()
    digest = kept.register(ONE, "team/x", replace=False).digest
    assert kept.delete("team/x") == ["team/x"]
    assert list(kept.describe(digest).names) == []
    with pytest.raises(UnknownProcessor):
        kept.resolve(named(name="team/x"))
    assert kept.resolve(named(digest=digest)).key == digest


def test_deleting_a_digest_takes_its_names_along() -> None:
    kept = registry()
    kept.register(ONE, "team/y", replace=False)
    digest = kept.register(ONE, "team/x", replace=False).digest
    assert kept.delete(digest) == ["team/x", "team/y"]
    for gone in (named(digest=digest), named(name="team/x"), named(name="team/y")):
        with pytest.raises(UnknownProcessor, match="register it first"):
            kept.resolve(gone)


def test_built_ins_stay() -> None:
    with pytest.raises(InvalidArgument, match="built-ins cannot be deleted"):
        registry().delete("thinking_budget")


@pytest.mark.parametrize("processor", ["", "nobody", "team/nobody", "0" * 64])
def test_unknown_everywhere(processor: str) -> None:
    kept = registry()
    for call in (kept.describe, kept.delete):
        with pytest.raises(UnknownProcessor):
            call(processor)
    for by in ("builtin", "name", "digest"):
        with pytest.raises(UnknownProcessor):
            kept.resolve(named(**{by: processor}))


def test_a_processor_that_is_not_named() -> None:
    with pytest.raises(InvalidArgument, match="set one of builtin, name, digest, payload"):
        registry().resolve(common_pb2.Processor())


def test_an_unknown_built_in_is_told_what_there_is() -> None:
    with pytest.raises(UnknownProcessor, match=r"'thinking_bugdet'; there are .*thinking_budget"):
        registry().resolve(named(builtin="thinking_bugdet"))


def test_a_name_is_no_digest_and_a_digest_no_name() -> None:
    kept = registry()
    digest = kept.register(ONE, "team/x", replace=False).digest
    for wrong in (named(name=digest), named(digest="team/x"), named(builtin="team/x")):
        with pytest.raises(UnknownProcessor):
            kept.resolve(wrong)


@pytest.mark.parametrize("serialized", ["not JSON", "[]", "{}", '{"callable": "zz"}', '{"callable": "00"}', ""])
def test_payloads_that_are_none(serialized: str) -> None:
    kept = registry()
    with pytest.raises(MalformedPayload):
        kept.register(serialized, "", replace=False)
    with pytest.raises(MalformedPayload):
        kept.resolve(named(payload=serialized))


def test_code_of_another_python_is_not_registered() -> None:
    with pytest.raises(PythonMismatch, match=r"3\.9"):
        registry().register(json.dumps({**json.loads(ONE), "python": "3.9"}), "", replace=False)


@pytest.mark.parametrize("serialized", [ONE, "not JSON"])
def test_without_the_flag_nothing_that_is_shipped_is_looked_at(serialized: str) -> None:
    kept = registry(allow=False)
    with pytest.raises(PayloadNotAllowed, match="--enable-custom-logit-processor"):
        kept.register(serialized, "", replace=False)
    with pytest.raises(PayloadNotAllowed):
        kept.resolve(named(payload=serialized))
    assert kept.resolve(named(builtin="disallowed_tokens")).installed is BUILTINS["disallowed_tokens"]


def test_looking_up_and_registering_unpickle_nothing() -> None:
    """A payload whose unpickling would end the process."""
    code = """
import json, pickle, sys
from logitport_proto import common_pb2
from logitport_server.registry.policy import PayloadPolicy
from logitport_server.principals import ADMIN, APPLY, REGISTER, Domain, Principal
from logitport_server.registry.registry import Registry
from logitport_server.registry.store import Store

class Bomb:
    def __reduce__(self):
        import os
        return os._exit, (3,)

serialized = json.dumps({"callable": pickle.dumps(Bomb()).hex()})
registry = Registry(PayloadPolicy(allow_shipped=True, max_bytes=1 << 20), max_registered=8, max_owned=8)
digest = registry.register(serialized, "team/bomb", replace=False).digest
for processor in ({"payload": serialized}, {"name": "team/bomb"}, {"digest": digest}):
    assert registry.resolve(common_pb2.Processor(**processor)).key == digest
print("alive")
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=200)
    assert done.stdout.strip() == "alive", done.stderr


def test_many_threads() -> None:
    kept = registry(most=2)

    def use(at: int) -> None:
        for turn in range(50):
            name = f"team/x{(at + turn) % 5}"
            kept.register(ONE if at % 2 else TWO, name, replace=True)
            kept.describe_all()
            with suppress(UnknownProcessor):  # another thread has deleted it
                kept.describe(name)
                kept.resolve(named(name=name))
                kept.delete(name)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(use, range(8)))
    assert len(kept.describe_all()) == len(BUILTINS) + 2


ALICE, BOB = (Principal(name, frozenset({APPLY, REGISTER})) for name in ("alice", "bob"))
OPERATOR = Principal("operator", frozenset({ADMIN}))
ENGINE = Principal("engine", frozenset({APPLY}))


def test_what_is_anothers_is_as_if_it_were_not_there() -> None:
    kept = registry()
    digest = kept.register(ONE, "alice/x", ALICE, replace=False).digest
    for by in (named(name="alice/x"), named(digest=digest)):
        assert kept.resolve(by, ALICE).domain == TrustDomain("alice")
        with pytest.raises(UnknownProcessor):
            kept.resolve(by, BOB)
    for processor in ("alice/x", digest):
        for refused in (kept.describe, kept.delete):
            with pytest.raises(UnknownProcessor) as told:
                refused(processor, BOB)
            with pytest.raises(UnknownProcessor) as of_nothing:
                refused(processor.replace("a", "b"), BOB)
            assert str(told.value).replace(processor, "?") == str(of_nothing.value).replace(
                processor.replace("a", "b"), "?"
            )
    assert len(kept.describe_all(BOB)) == len(BUILTINS)
    assert kept.describe_all(ALICE)[-1].owner == "alice"


def test_a_name_is_its_first_registrars() -> None:
    kept = registry()
    digest = kept.register(ONE, "team/x", ALICE, replace=False).digest
    for serialized in (ONE, TWO):
        for replace in (False, True):
            with pytest.raises(NameTaken, match="'team/x' is another principal's") as told:
                kept.register(serialized, "team/x", BOB, replace=replace)
            assert digest not in str(told.value)
            assert "alice" not in str(told.value)
    assert len(kept.describe_all(OPERATOR)) == len(BUILTINS) + 1
    kept.delete("team/x", ALICE)
    assert kept.register(TWO, "team/x", BOB, replace=False).owner == "bob"


def test_the_same_payload_of_two_is_two_registrations() -> None:
    kept = registry()
    digest = kept.register(ONE, "alice/x", ALICE, replace=False).digest
    assert list(kept.register(ONE, "bob/x", BOB, replace=False).names) == ["bob/x"]
    assert kept.resolve(named(digest=digest), BOB).domain == TrustDomain("bob")
    assert kept.delete(digest, ALICE) == ["alice/x"]
    assert kept.resolve(named(name="bob/x"), BOB).key == digest
    with pytest.raises(UnknownProcessor):
        kept.resolve(named(digest=digest), ALICE)


def test_what_is_shared_everyone_sees_and_uses_and_its_owner_alone_deletes() -> None:
    kept = registry()
    digest = kept.register(ONE, "alice/x", ALICE, replace=False, shared=True).digest
    for by in (named(name="alice/x"), named(digest=digest)):
        assert kept.resolve(by, BOB).domain == TrustDomain("alice")
    assert kept.describe("alice/x", BOB).shared
    assert kept.describe_all(BOB)[-1].digest == digest
    for processor in ("alice/x", digest):
        with pytest.raises(NotPermitted, match=r"'bob' may not delete .* another principal's, .* scope 'admin'"):
            kept.delete(processor, BOB)
    kept.register(ONE, "", ALICE, replace=False)
    with pytest.raises(UnknownProcessor):
        kept.resolve(named(digest=digest), BOB)


def test_ones_own_comes_before_what_others_share() -> None:
    kept = registry()
    digest = kept.register(ONE, "alice/x", ALICE, replace=False, shared=True).digest
    kept.register(ONE, "", BOB, replace=False)
    assert kept.resolve(named(digest=digest), BOB).domain == TrustDomain("bob")
    assert kept.resolve(named(name="alice/x"), BOB).domain == TrustDomain("alice")


def test_an_admin_sees_and_deletes_everything_and_uses_nothing_of_it() -> None:
    kept = registry()
    digest = kept.register(ONE, "alice/x", ALICE, replace=False).digest
    kept.register(ONE, "bob/x", BOB, replace=False)
    kept.register(TWO, "bob/y", BOB, replace=False)
    assert len(kept.describe_all(OPERATOR)) == len(BUILTINS) + 3
    assert kept.describe("bob/y", OPERATOR).owner == "bob"
    with pytest.raises(UnknownProcessor):
        kept.resolve(named(name="bob/y"), OPERATOR)
    assert kept.delete("bob/y", OPERATOR) == ["bob/y"]
    assert kept.delete(digest, OPERATOR) == ["alice/x", "bob/x"]


def test_shipping_with_a_request_takes_the_scope() -> None:
    kept = registry()
    assert kept.resolve(named(payload=ONE), ALICE, "tenant").domain == TrustDomain("alice", "tenant")
    with pytest.raises(NotPermitted, match=r"'engine' may not ship a processor .* scope 'register'"):
        kept.resolve(named(payload="not JSON"), ENGINE)


def test_a_principal_has_a_share_of_the_registry() -> None:
    kept = registry(most=3, owned=1)
    kept.register(ONE, "", ALICE, replace=False)
    with pytest.raises(LimitExceeded, match=r"'alice' has registered 1 processors, .* --max-processors-per-principal"):
        kept.register(TWO, "", ALICE, replace=False)
    kept.register(TWO, "", BOB, replace=False)


def test_a_principal_has_as_many_names_as_processors() -> None:
    kept = registry(most=9, owned=2)
    for name in ("alice/a", "alice/b", "alice/b"):
        kept.register(ONE, name, ALICE, replace=False)
    with pytest.raises(LimitExceeded, match=r"'alice' has bound 2 names, .* --max-processors-per-principal"):
        kept.register(ONE, "alice/c", ALICE, replace=False)
    kept.register(TWO, "alice/b", ALICE, replace=True)
    kept.delete("alice/a", ALICE)
    kept.register(ONE, "alice/c", ALICE, replace=False)
    kept.register(ONE, "bob/c", BOB, replace=False)


def test_a_payload_that_is_too_long() -> None:
    kept = registry(max_bytes=len(ONE))
    kept.register(ONE, "", replace=False)
    for refused in (
        lambda: kept.register(ONE + " ", "", replace=False),
        lambda: kept.resolve(named(payload=ONE + " ")),
    ):
        with pytest.raises(LimitExceeded, match=rf"{len(ONE) + 1} characters .* {len(ONE)}: .* --max-payload-bytes"):
            refused()


def test_a_name_stays_its_owners_while_its_processor_is_refused(tmp_path: Path) -> None:
    def opened(max_bytes: int) -> Registry:
        store = Store(tmp_path / "store")
        stores.callback(store.close)
        return Registry(
            PayloadPolicy(allow_shipped=True, max_bytes=max_bytes), max_registered=8, max_owned=8, store=store
        )

    with ExitStack() as stores:
        opened(1 << 20).register(ONE, "team/x", ALICE, replace=False, shared=True)
    with ExitStack() as stores:
        stricter = opened(len(ONE) - 1)
        with pytest.raises(UnknownProcessor):
            stricter.resolve(named(name="team/x"), ALICE)
        smaller = json.dumps({"callable": b"\x80\x04N.".hex()})
        for replace in (False, True):
            with pytest.raises(NameTaken, match="another principal's"):
                stricter.register(smaller, "team/x", BOB, replace=replace)
    with ExitStack() as stores:
        again = opened(1 << 20)
        assert again.resolve(named(name="team/x"), BOB).domain == TrustDomain("alice")
        again.delete("team/x", ALICE)
        assert again.register(TWO, "team/x", BOB, replace=False).owner == "bob"
