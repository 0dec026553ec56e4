"""Labels for names that clients choose: bounded in number, and divided among principals."""

from __future__ import annotations

from collections import Counter

import pytest

from logitport_server.metrics.bounded_labels import IDLE_SECONDS, OTHERS, REPLACEABLE_SECONDS, BoundedLabels, shortened
from tests.clock import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def labels(clock: Clock) -> BoundedLabels[Counter[str]]:
    return BoundedLabels(Counter, ["built-in"], max_own=2, max_all=5, clock=clock)


def shown(labels: BoundedLabels[Counter[str]]) -> list[str]:
    return [label for label, _ in labels.items()]


def test_labels_over_the_limit_of_a_principal_share_one(labels: BoundedLabels[Counter[str]]) -> None:
    for name in "abcd":
        labels.get(name, "mallory")["rows"] += 1
    labels.get("e", "alice")["rows"] += 1
    assert dict(labels.items()) == {OTHERS: {"rows": 2}, **{name: {"rows": 1} for name in "abe"}}


def test_a_name_that_is_the_shared_label_has_no_second_one(labels: BoundedLabels[Counter[str]]) -> None:
    for name in (OTHERS, "a", "b", "c"):
        labels.get(name, "mallory")["rows"] += 1
    assert shown(labels) == [OTHERS, "a", "b"]


def test_labels_over_the_limit_of_all_share_one(labels: BoundedLabels[Counter[str]]) -> None:
    for number in range(50):
        labels.get(f"name {number}", f"principal {number}")
    labels.get("built-in", "alice")
    assert shown(labels) == [OTHERS, "built-in", *(f"name {number}" for number in range(5))]


def test_a_label_without_use_makes_room(labels: BoundedLabels[Counter[str]], clock: Clock) -> None:
    for name in "ab":
        labels.get(name, "alice")
    clock.now = REPLACEABLE_SECONDS
    labels.get("a", "alice")
    labels.get("c", "alice")
    assert shown(labels) == ["a", "c"]
    labels.get("d", "alice")
    assert shown(labels) == [OTHERS, "a", "c"]


def test_a_label_of_another_principal_makes_room_if_all_are_taken(
    labels: BoundedLabels[Counter[str]], clock: Clock
) -> None:
    for number in range(5):
        labels.get(f"name {number}", f"principal {number}")
    clock.now = REPLACEABLE_SECONDS
    labels.get("new", "alice")
    assert shown(labels) == ["name 1", "name 2", "name 3", "name 4", "new"]


def test_a_label_leaves_after_an_hour_without_use(labels: BoundedLabels[Counter[str]], clock: Clock) -> None:
    for name in "ab":
        labels.get(name, "alice")
    labels.get("built-in", "alice")
    clock.now = IDLE_SECONDS - 1
    labels.get("a", "alice")
    clock.now = IDLE_SECONDS
    assert shown(labels) == ["built-in", "a"]


def test_a_forgotten_label_leaves_room_for_its_principal(labels: BoundedLabels[Counter[str]]) -> None:
    for name in "ab":
        labels.get(name, "alice")
    labels.forget("a")
    labels.forget("unknown")
    labels.get("c", "alice")
    assert shown(labels) == ["b", "c"]


def test_a_label_of_another_principal_is_the_owners(labels: BoundedLabels[Counter[str]]) -> None:
    """Otherwise a shared processor would take a label of each principal that uses it."""
    labels.get("a", "alice")
    for name in "abc":
        labels.get(name, "bob")
    assert shown(labels) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("Ban (sha256:0123456789ab)", "Ban (sha256:0123456789ab)"),
        ("a\nb\x00\u202e", r"a\nb\x00\u202e"),
        ("x" * 129, "x" * 127 + "…"),
    ],
)
def test_a_label_is_printable_and_short(name: str, label: str) -> None:
    assert shortened(name) == label
