"""The state of a processor, which decides whether its payload is made again."""

from __future__ import annotations

import pickle
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import torch

from logitport import payload

if TYPE_CHECKING:
    from collections.abc import Callable

SOURCE = """
from logitport import EditProcessor, Float, TensorProcessor

LIMIT = 3
TABLE = [1, [2]]
WORDS = ["a", "b"] * 50
IDS = {str(number): number for number in range(100)}
CHOSEN = set(range(100))
PAIRS = [(str(number), [number]) for number in range(100)]
BY_WORD = {str(number): {"id": number} for number in range(100)}
SETS = [{str(number), number} for number in range(100)]
DEEP = [[[number]] for number in range(100)]

def deeper(ids):
    return ids[:LIMIT]

def helper(ids, most=5):
    return deeper(ids)[:most]

def with_variable(step):
    class Encloses(EditProcessor):
        def edit(self, request, edits):
            edits.deny([step])
    return Encloses

class Base(EditProcessor):
    scale = 1

    def first(self, ids):
        return ids[: self.scale]

class Ban(Base):
    names = {"a": 1}

    def edit(self, request, edits):
        nested = PAIRS, BY_WORD, SETS, DEEP
        edits.deny(helper(self.first(TABLE)) + [len(each) for each in (WORDS, IDS, CHOSEN, *nested)])

class Scales(TensorProcessor):
    params = {"by": Float(default=1.0)}

    def process(self, logits, params, history):
        return logits * params.by[:, None] * LIMIT
"""


def module() -> Any:
    """The code above as a module of the author's."""
    made = ModuleType("authors_own")
    exec(SOURCE, vars(made))
    return made


def test_nothing_has_changed() -> None:
    here = module()
    here.PAIRS.append(here.PAIRS)  # a container in itself
    for cls in (here.Ban, here.Scales, here.with_variable(2)):
        assert payload.state_of(cls) == payload.state_of(cls)


def replaced(name: str, value: object) -> Callable[[Any], None]:
    return lambda here: setattr(here, name, value)


@pytest.mark.parametrize(
    "change",
    [
        replaced("LIMIT", 4),
        replaced("LIMIT", True),
        lambda here: here.TABLE[1].append(3),
        lambda here: here.WORDS.__setitem__(99, "c"),
        lambda here: here.IDS.__setitem__("7", 8),
        lambda here: here.CHOSEN.add(100),
        lambda here: here.PAIRS[99][1].append(0),
        lambda here: here.BY_WORD["99"].update(id=True),
        lambda here: here.SETS[99].add(0),
        lambda here: here.DEEP[99][0].append(0),
        replaced("deeper", lambda ids: ids),
        replaced("helper", len),
        lambda here: delattr(here, "helper"),
        lambda here: setattr(here.helper, "__defaults__", (6,)),
        lambda here: setattr(here.Base, "scale", 2),
        lambda here: setattr(here.Base, "first", lambda self, ids: ids),
        lambda here: setattr(here.Base, "added", 1),
        lambda here: delattr(here.Base, "scale"),
        lambda here: here.Ban.names.update(a=2),
        lambda here: setattr(here.Ban, "__doc__", "New."),
        lambda here: setattr(here.Ban, "__bases__", (type("Other", (here.Base,), {"__module__": "authors_own"}),)),
    ],
)
def test_a_change(change: Callable[[Any], None]) -> None:
    here = module()
    before, payload_before = payload.state_of(here.Ban), payload.dumps(here.Ban)
    change(here)
    assert payload.state_of(here.Ban) != before
    assert payload.dumps(here.Ban) != payload_before


def test_code_of_installed_packages_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def edit(self, request, edits):  # type: ignore[no-untyped-def]
        edits.deny([len(pickle.dumps(request))])

    cls = type("Pickles", (module().Base,), {"edit": edit, "__module__": "authors_own"})
    before = payload.state_of(cls)
    monkeypatch.setattr(pickle, "DEFAULT_PROTOCOL", 1)
    assert payload.state_of(cls) == before


LIST, DICT, TEXTS = [], {}, ["a"] * 100  # type: ignore[var-annotated]


@pytest.mark.parametrize(
    ("first", "second", "equal"),
    [
        # Sets that were filled in another order.
        (
            lambda here: {"SETS": [{8 * number, 0} for number in range(1, 100)]},
            lambda here: {"SETS": [{0, 8 * number} for number in range(1, 100)]},
            True,
        ),
        # One object or two equal ones: a change of one has another effect if a list has it twice.
        (lambda here: {"DEEP": [LIST, LIST, *range(100)]}, lambda here: {"DEEP": [LIST, [], *range(100)]}, False),
        (lambda here: {"DEEP": [DICT, DICT, *range(100)]}, lambda here: {"DEEP": [DICT, {}, *range(100)]}, False),
        (lambda here: {"BY_WORD": here.PAIRS[7][1]}, lambda here: {"BY_WORD": [*here.BY_WORD]}, False),
        # TABLE is saved before PAIRS.
        (lambda here: {"TABLE": [here.PAIRS[7][1]]}, lambda here: {"TABLE": [[*here.PAIRS[7][1]]]}, False),
        (lambda here: {"WORDS": TEXTS, "DEEP": TEXTS}, lambda here: {"DEEP": [*TEXTS]}, False),
    ],
)
def test_equal_states_have_equal_values_and_the_same_shared_objects(first: Any, second: Any, equal: bool) -> None:
    here = module()
    vars(here).update(first(here))
    before = payload.state_of(here.Ban)
    vars(here).update(second(here))
    assert (payload.state_of(here.Ban) == before) == equal


def test_tuples_of_one_tuple_are_read_once() -> None:
    here = module()
    nested: Any = ([],)
    for _ in range(60):
        nested = (nested, nested)
    here.DEEP = [nested, *range(100)]
    assert payload.state_of(here.Ban).digest  # a text would have 2 to the power of 60 lists


def test_tensors() -> None:
    here = module()
    digests = set()
    for tensor in (
        torch.zeros(2, 3),
        torch.zeros(3, 2),
        torch.zeros(6),
        torch.zeros(6, dtype=torch.int32),
        torch.zeros(6, dtype=torch.bool),
        torch.tensor([0.0] * 5 + [1.0]),
        torch.tensor([[0.0, 1.0], [2.0, 3.0]]),
        torch.tensor([[0.0, 1.0], [2.0, 3.0]]).T,
        torch.tensor(1.0),
        torch.zeros(0),
        torch.zeros(0, 2),
        torch.zeros(6).requires_grad_().to_sparse(),
    ):
        here.TABLE = [tensor]
        assert payload.state_of(here.Ban) == payload.state_of(here.Ban)
        digests.add(payload.state_of(here.Ban).digest)
    assert len(digests) == 12
    one = torch.zeros(6)
    here.TABLE = [one, one]
    before = payload.state_of(here.Ban)
    here.TABLE = [one, one.clone()]
    assert payload.state_of(here.Ban) != before


def test_large_containers() -> None:
    for size, found in ((10_000, ""), (10_001, "the global 'WORDS' of Ban.edit is a list of 10,001 elements")):
        here = module()
        here.WORDS = ["a"] * size
        assert payload.state_of(here.Ban).large == found
        for nested in (["a"] * size, ("a",) * size):
            here = module()
            here.WORDS = [nested, *range(100)]
            assert bool(payload.state_of(here.Ban).large) == bool(found)
