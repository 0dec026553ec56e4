"""Functions, classes and constants that the processors of this package import."""

import functools
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, IntFlag
from typing import Generic, NamedTuple, TypeVar

OFFSET = 10
T = TypeVar("T")


def even(number):
    return number == 0 or odd(number - 1)


def odd(number):
    return number != 0 and even(number - 1)


@functools.lru_cache(maxsize=50)
def fibonacci(number):
    return number if number < 2 else fibonacci(number - 1) + fibonacci(number - 2)


def shifted(value, by=OFFSET, *, twice=False):
    """Uses a global, a default and a keyword of its own."""
    return value + OFFSET + (2 * by if twice else by)


@contextmanager
def collected(into):
    into.append("enter")
    yield into
    into.append("exit")


@dataclass(frozen=True)
class Settings:
    size: int = 3
    names: list[str] = field(default_factory=list)

    def doubled(self):
        return Settings(self.size * 2, [*self.names, "more"])


class Point(NamedTuple):
    x: int
    y: int = 7

    def total(self):
        return self.x + self.y


class Color(Enum):
    RED = 1
    BLUE = "b"

    @classmethod
    def _missing_(cls, value):
        return cls.RED

    def lower(self):
        return self.name.lower()


class Mode(str, Enum):
    FAST = "fast"


class Access(IntFlag):
    READ = 1
    WRITE = 2


class Box(Generic[T]):
    __slots__ = ("content",)

    def __init__(self, content):
        self.content = content


class Tracked:
    """Records its subclasses; the server must not record them again."""

    known = []  # noqa: RUF012 - a class that keeps state in one is what is tested

    def __init_subclass__(cls, *, tag="", **keywords):
        super().__init_subclass__(**keywords)
        cls.tag = tag
        Tracked.known.append(cls.__name__)


class Typed(type):
    def __new__(mcs, name, bases, namespace):
        return super().__new__(mcs, name, bases, {**namespace, "made_by": mcs.__name__})

    def shout(cls):
        return cls.__name__.upper()


class Refused(ValueError):
    pass
