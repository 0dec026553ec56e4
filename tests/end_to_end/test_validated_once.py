"""A chain that a hook's front end has tried is not checked again when its engine admits the request."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from logitport import Client, EditProcessor, InvalidArgument, Request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from logitport import EditRequest, RowEdits
    from logitport.session import Session

VOCAB = 32


class CheckedOnce(EditProcessor):
    """Refuses parameters that its process has checked before, and a start with parameters that it has not checked."""

    checked: ClassVar[list[Any]] = []

    @classmethod
    def validate_params(cls, params: Any) -> None:
        from logitport import InvalidArgument

        if dict(params) in cls.checked:
            raise InvalidArgument("the parameters are checked again")
        cls.checked.append(dict(params))

    def start(self, request: EditRequest) -> None:
        if dict(request.params) not in self.checked:
            raise ValueError("the parameters are not checked")

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.deny([7])


class Replacement(CheckedOnce):
    checked: ClassVar[list[Any]] = []

    def edit(self, request: EditRequest, edits: RowEdits) -> None:
        edits.deny([8])


@pytest.fixture
def front_end(client: Client) -> Iterator[Session]:
    with client.session(vocab_size=1 << 20, transport="grpc") as session:
        yield session


@pytest.fixture(params=["grpc", "local"])
def engine(request: pytest.FixtureRequest, client: Client) -> Iterator[Session]:
    with client.session(vocab_size=VOCAB, transport=request.param) as session:
        yield session


@pytest.fixture(params=["add", "begin_add"])
def admit(request: pytest.FixtureRequest, engine: Session) -> Callable[[Request], None]:
    """Admit a request in the engine and remove it: apart from its state, a check would run in another process."""

    def add(admitted: Request) -> None:
        handle = engine.add(admitted) if request.param == "add" else engine.begin_add([admitted])[0].result(200)
        engine.remove(handle)

    return add


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses."""
    return re.sub(r"\W+", "-", request.node.name).strip("-")


def test_the_engine_does_not_check_again_what_the_front_end_has_tried(
    name: str, front_end: Session, admit: Callable[[Request], None]
) -> None:
    processor = CheckedOnce.to_str()

    def of(tenant: str, number: int) -> Request:
        return Request([1], processors=[(processor, {"n": number})], tenant=f"{name} {tenant}")

    front_end.remove(front_end.add(of("a", 1)))
    admit(of("a", 1))
    admit(of("a", 2))  # not tried: its start shows that it is checked now
    admit(of("b", 1))  # in a process of its own


def test_the_owner_of_a_name_replaces_its_class(
    name: str, client: Client, front_end: Session, admit: Callable[[Request], None]
) -> None:
    name = f"checked/{name}"
    client.register(CheckedOnce, name=name)
    front_end.remove(front_end.add(Request([1], processors=[(name, {"n": name})])))
    admit(Request([1], processors=[(name, {"n": name})]))
    client.register(Replacement, name=name, replace=True)
    admit(Request([1], processors=[(name, {"n": name})]))  # its start shows that the new class has checked


def test_a_refusal_is_not_remembered(name: str, front_end: Session, admit: Callable[[Request], None]) -> None:
    class Refuses(CheckedOnce):
        @classmethod
        def validate_params(cls, params: Any) -> None:
            from logitport import InvalidArgument

            cls.checked.append(dict(params))
            raise InvalidArgument(f"refused {len(cls.checked)}")

    request = Request([1], processors=[(Refuses.to_str(), {})], tenant=name)
    with pytest.raises(InvalidArgument, match="refused 1"):
        front_end.add(request)
    with pytest.raises(InvalidArgument, match="refused 2"):
        admit(request)
