"""Attempts of a principal to see, use, rename, replace, delete or impersonate another principal's processors."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from logitport import AccessDenied, Client, LogitportError, NameTaken, NotFound, Request, RequestsFailed
from logitport_server.access import new_token
from tests.toy_processors import AddOne, AddTwo

if TYPE_CHECKING:
    from collections.abc import Iterator

VOCAB = 64
NAME = "team/add:v1"
SCOPES = {
    "alice": ["apply", "register"],
    "mallory": ["apply", "register"],
    "reader": ["apply"],
    "operator": ["admin"],
    "bystander": ["apply", "register"],
}
TOKENS = {name: new_token(name, scopes) for name, scopes in SCOPES.items()}


@pytest.fixture(scope="session")
def attacked(serving: Any) -> Iterator[Any]:
    with serving("--enable-custom-logit-processor", grants=[grant for _, grant in TOKENS.values()]) as running:
        yield running


@pytest.fixture(scope="session")
def credentials() -> dict[str, Any]:
    return {"token": TOKENS["bystander"][0]}


@pytest.fixture
def clients(attacked: Any) -> Iterator[dict[str, Client]]:
    """A client for each principal. Their registrations are deleted afterwards."""
    with ExitStack() as stack:
        clients = {name: stack.enter_context(Client(attacked.target, token=TOKENS[name][0])) for name in TOKENS}
        yield clients
        for name in ("alice", "mallory"):
            for ref in clients[name].processors():
                if ref.owner == name:
                    clients[name].delete(ref.digest)


@pytest.fixture
def alice(clients: dict[str, Client]) -> Client:
    return clients["alice"]


@pytest.fixture
def mallory(clients: dict[str, Client]) -> Client:
    return clients["mallory"]


def added(client: Client, processor: Any, **fields: Any) -> float:
    result = client.apply(np.zeros((1, VOCAB), np.float32), [Request(processors=[(processor, {})], **fields)])
    (value,) = np.unique(result.logits)
    return float(value)


def refusal(client: Client, processor: Any, **fields: Any) -> LogitportError:
    with pytest.raises(RequestsFailed) as raised:
        added(client, processor, **fields)
    (error,) = raised.value.result.failures.values()
    return error


def test_unshared_processors_are_invisible(alice: Client, mallory: Client) -> None:
    digest = alice.register(AddOne, name=NAME).digest
    assert NAME not in {name for ref in mallory.processors() for name in ref.names}
    assert digest not in {ref.digest for ref in mallory.processors()}
    unknown = pytest.raises(NotFound)
    for processor in (NAME, digest):
        for call in (mallory.processor, mallory.delete):
            with unknown as raised:
                call(processor)
            with unknown as other:
                call("team/unknown")
            # The error for a hidden processor equals the error for one that does not exist.
            assert str(raised.value).replace(processor, "") == str(other.value).replace("team/unknown", "")
        assert isinstance(refusal(mallory, processor), NotFound)
        for transport in ("grpc", "local"):
            with mallory.session(vocab_size=VOCAB, transport=transport) as session, pytest.raises(NotFound):  # type: ignore[arg-type]
                session.add(Request(processors=[(processor, {})]))
    assert added(alice, NAME) == 1


def test_only_an_admin_sees_and_deletes_processors_of_others(alice: Client, clients: dict[str, Client]) -> None:
    alice.register(AddOne, name=NAME)
    assert clients["operator"].processor(NAME).owner == "alice"
    assert clients["operator"].delete(NAME) == (NAME,)


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_a_name_cannot_be_taken_over(alice: Client, mallory: Client, replace: bool, shared: bool) -> None:
    alice.register(AddOne, name=NAME, shared=shared)
    for processor in (AddTwo, AddOne):
        with pytest.raises((NameTaken, AccessDenied)):
            mallory.register(processor, name=NAME, replace=replace)
    assert added(alice, NAME) == 1
    assert alice.processor(NAME).owner == "alice"


def test_shared_processors_can_only_be_used(alice: Client, mallory: Client) -> None:
    digest = alice.register(AddOne, name=NAME, shared=True).digest
    assert (added(mallory, NAME), added(mallory, digest)) == (1, 1)
    for processor in (NAME, digest):
        with pytest.raises((AccessDenied, NotFound)):
            mallory.delete(processor)
    assert added(alice, NAME) == 1


def test_registering_the_same_payload_first_gives_no_control_over_it(alice: Client, mallory: Client) -> None:
    digest = mallory.register(AddOne, name="evil/add", shared=True).digest
    assert alice.register(AddOne, name=NAME).digest == digest
    assert alice.processor(digest).owner == "alice"
    mallory.delete(digest)
    assert (added(alice, NAME), added(alice, digest)) == (1, 1)
    with pytest.raises(NotFound):
        alice.processor("evil/add")


def test_sharing_a_payload_does_not_share_other_registrations_of_it(alice: Client, mallory: Client) -> None:
    alice.register(AddOne, name=NAME)
    mallory.register(AddOne, shared=True)
    with pytest.raises(NotFound):
        mallory.processor(NAME)
    assert alice.processor(NAME).shared is False


def test_a_deleted_name_can_be_taken_but_running_requests_keep_their_processor(alice: Client, mallory: Client) -> None:
    alice.register(AddOne, name=NAME, shared=True)
    with alice.session(vocab_size=VOCAB) as session:
        handle = session.add(Request(processors=[(NAME, {})]))
        alice.delete(NAME)
        mallory.register(AddTwo, name=NAME, shared=True)
        logits = np.zeros((1, VOCAB), np.float32)
        session.step({handle: []}).apply(logits)
        assert np.unique(logits).tolist() == [1.0]


def test_payloads_in_requests_need_the_scope(clients: dict[str, Client]) -> None:
    assert isinstance(refusal(clients["reader"], AddTwo), AccessDenied)
    assert isinstance(refusal(clients["reader"], AddTwo, tenant="alice"), AccessDenied)
    with clients["reader"].session(vocab_size=VOCAB) as session, pytest.raises(AccessDenied):
        session.add(Request(processors=[(AddTwo, {})]))


def test_a_tenant_with_the_name_of_a_principal_is_not_that_principal(alice: Client, mallory: Client) -> None:
    digest = alice.register(AddOne, name=NAME).digest
    for processor in (NAME, digest):
        assert isinstance(refusal(mallory, processor, tenant="alice"), NotFound)
