"""Tables of bounded size."""

from __future__ import annotations

from logitport.system.bounded import BoundedTable, PartyCounter


def test_the_least_recently_used_entry_is_dropped() -> None:
    table: BoundedTable[str, int] = BoundedTable(3)
    for number, key in enumerate("abc"):
        table[key] = number
    assert table.use("a") == 0
    table["b"] = 7
    table["d"] = 8
    assert dict(table) == {"a": 0, "b": 7, "d": 8}
    assert table.get("a") == 0, "only `use` counts as a use"
    table["e"] = 9
    assert list(table) == ["b", "d", "e"]
    assert table.use("c") is None
    assert len(table) == 3


def test_setdefault_and_update_keep_the_bound() -> None:
    table: BoundedTable[int, set[int]] = BoundedTable(2)
    for number in range(100):
        table.setdefault(number, set()).add(number)
    table.update({100: set(), 101: set(), 102: set()})
    assert list(table) == [101, 102]


def test_parties_that_hold_nothing_take_no_memory() -> None:
    counter: PartyCounter[str] = PartyCounter()
    for _ in range(2):
        counter["a"] += 1
    counter["b"] += 1
    counter.remove("a")
    counter.remove("b")
    assert dict(counter) == {"a": 1}
    counter.remove("a")
    assert (len(counter), counter["a"], counter.total()) == (0, 0, 0)
