"""The state of a processor, which decides whether its payload is made again."""

from __future__ import annotations

import pickle
import threading
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from logitport import CustomLogitProcessor, payload

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


def test_an_enclosed_variable() -> None:
    cls = module().with_variable(2)
    before = payload.state_of(cls)
    cls.edit.__closure__[0].cell_contents = 3
    assert payload.state_of(cls) != before


def test_code_of_installed_packages_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def edit(self, request, edits):  # type: ignore[no-untyped-def]
        edits.deny([len(pickle.dumps(request))])

    cls = type("Pickles", (module().Base,), {"edit": edit, "__module__": "authors_own"})
    before = payload.state_of(cls)
    monkeypatch.setattr(pickle, "DEFAULT_PROTOCOL", 1)
    assert payload.state_of(cls) == before


def test_sets_that_were_filled_in_another_order_are_equal() -> None:
    here = module()
    here.SETS = [{8 * number, 0} for number in range(1, 100)]
    before = payload.state_of(here.Ban)
    here.SETS = [{0, 8 * number} for number in range(1, 100)]
    assert payload.state_of(here.Ban) == before


@pytest.mark.parametrize("inner", [[], {}])
def test_one_object_or_two_equal_ones(inner: Any) -> None:
    """A change of one object in a list has another effect if the list has it twice."""
    here = module()
    here.DEEP = [inner, inner, *range(100)]
    before = payload.state_of(here.Ban)
    here.DEEP = [inner, type(inner)(), *range(100)]
    assert payload.state_of(here.Ban) != before


def test_one_large_list_under_two_names() -> None:
    here = module()
    here.WORDS = here.DEEP = ["a"] * 100
    before = payload.state_of(here.Ban)
    here.DEEP = ["a"] * 100
    assert payload.state_of(here.Ban) != before


def test_a_container_in_itself() -> None:
    here = module()
    here.PAIRS.append(here.PAIRS)
    assert payload.state_of(here.Ban) == payload.state_of(here.Ban)


def test_large_containers() -> None:
    for size, found in ((10_000, ""), (10_001, "the global 'WORDS' of Ban.edit is a list of 10,001 elements")):
        here = module()
        here.WORDS = ["a"] * size
        assert payload.state_of(here.Ban).large == found


def test_what_cannot_be_shipped() -> None:
    class Locks(CustomLogitProcessor):
        lock = threading.Lock()

        def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
            return logits

    with pytest.raises(Exception, match="lock"):
        payload.state_of(Locks)
