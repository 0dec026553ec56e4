"""Processors of a client's own, each using something that must travel with it.

Each is called with a list of floats, and returns what JSON can hold. The annotations name what no server has.
"""

import concurrent.futures
import functools
import logging
import math
import os.path
import re
import xml.dom.minidom
from collections import Counter, namedtuple
from typing import NewType

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

import client_code.shared
from client_code.shared import (
    Access,
    Box,
    Color,
    Mode,
    Point,
    Refused,
    Settings,
    Tracked,
    Typed,
    collected,
    even,
    fibonacci,
    shifted,
)
from logitport import CustomLogitProcessor
from logitport.edits import EditKind

BANNED = [1]
NAMES = {"gamma", "alpha", "beta", "delta"}
TABLE = {"ids": [1, 2], "self": None}
TABLE["self"] = TABLE
BIASES = torch.tensor([0.5, -2.0, 1.5], dtype=torch.bfloat16)
NOTHING = torch.empty(0, 3)
WEIGHTS = np.array([[1.0, 2.0]], dtype=np.float32)
NUMBER = re.compile(r"\d+")
LOG = logging.getLogger(__name__)
Pair = namedtuple("Pair", "left right", defaults=[5])
TokenId = NewType("TokenId", int)
REGISTRY = {}
counter = 0


def registered(cls):
    REGISTRY[cls.__name__] = cls
    return cls


def doubling(function):
    @functools.wraps(function)
    def wrapper(*args, **keywords):
        return function(*args, **keywords) * 2

    return wrapper


@doubling
def total(values):
    return sum(values)


class Constant(CustomLogitProcessor):
    def __call__(self, logits: client_code.shared.Tracked, custom_param_list=None):
        for banned in BANNED:
            logits[banned] = -1e9
        return logits


class Functions(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        return [even(10), fibonacci(20), shifted(1), shifted(1, 2, twice=True), total(logits)]


class GlobalState(CustomLogitProcessor):
    def up(self):
        global counter  # noqa: PLW0603 - what is tested
        counter += 1

    def __call__(self, logits, custom_param_list=None):
        before = counter
        self.up()
        return counter - before


class SelfReference(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        return [TABLE["self"]["self"]["ids"], type(self) is SelfReference]


class Base(CustomLogitProcessor):
    def __init__(self):
        self.base = 1

    def child(self):
        return Super

    def __call__(self, logits, custom_param_list=None):
        return [self.base]


@registered
class Super(Base):
    def __init__(self):
        super().__init__()
        self.child_attribute = 2

    def __call__(self, logits, custom_param_list=None):
        ours = REGISTRY["Super"] is type(self) is self.child()
        explicit = super(Super, self).__call__(logits)  # noqa: UP008 - finds the class by its global name
        return [*super().__call__(logits), *explicit, self.child_attribute, ours]


class Descriptors(CustomLogitProcessor):
    size = 3
    names = ("a", "b")

    @property
    def doubled(self):
        return self.size * 2

    @doubled.setter
    def doubled(self, value):
        self.size = value // 2

    @functools.cached_property
    def root(self):
        return math.sqrt(self.size + 1)

    @classmethod
    def made(cls):
        return cls().size

    @staticmethod
    def plain(value):
        return value - 1

    def __call__(self, logits, custom_param_list=None):
        self.doubled = 8
        return [self.size, self.root, self.made(), self.plain(3), self.names]


class Closures(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        calls = 0

        def down(number):
            nonlocal calls
            calls += 1
            return down(number - 1) if number else calls

        return [down(3), [value for value in logits if value < calls]]


def make_scaled(factor):
    uses = []

    class Scaled(CustomLogitProcessor):
        __slots__ = ("used",)

        def __call__(self, logits, custom_param_list=None):
            uses.append(factor)
            self.used = len(uses)
            return [value * factor for value in logits] + [self.used]

    return Scaled


class Data(CustomLogitProcessor):
    settings = Settings(2, ["x"])

    def __call__(self, logits, custom_param_list=None):
        doubled = self.settings.doubled()
        return [
            doubled.size,
            doubled.names,
            doubled == Settings(4, ["x", "more"]),
            repr(Settings()),
            hash(Settings) != 0,
        ]


class Tuples(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        return [Point(1).total(), Point(1), Pair(2)._asdict(), Pair(1, 2) == (1, 2)]


class Enums(CustomLogitProcessor):
    modes = {Mode.FAST: 1}  # noqa: RUF012

    def __call__(self, logits, custom_param_list=None):
        return [
            *(Color.RED.lower(), Color("b").name, Color("none") is Color.RED, len(Color)),
            *(Mode.FAST, self.modes[Mode("fast")], int(Access.READ | Access.WRITE), Access.WRITE in Access(3)),
            EditKind.DENY.name,
        ]


class Generics(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list: TokenId | None = None):
        return [Box[int](3).content, hasattr(Box(1), "__dict__"), TokenId(5)]


class Subclass(Tracked, CustomLogitProcessor, tag="tagged"):
    def __call__(self, logits, custom_param_list=None):
        return [self.tag, Tracked.known]


class Metaclass(metaclass=Typed):
    pass


class UsesMetaclass(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        return [Metaclass.made_by, Metaclass.shout()]


class Errors(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        seen = []
        with collected(seen):
            try:
                raise Refused("no")
            except ValueError as error:
                seen.append(str(error))
        return seen


class Modules(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        LOG.debug("called")
        document = xml.dom.minidom.parseString("<a/>")
        return [
            *(os.path.join("a", "b"), document.documentElement.tagName, math.floor(2.5)),
            *(concurrent.futures.ThreadPoolExecutor.__name__, Counter("aab")["a"], bool(NUMBER.match("12"))),
        ]


class Sets(CustomLogitProcessor):
    allowed = frozenset({"x", "y", "z", 1, (2, 3)})

    def __call__(self, logits, custom_param_list=None):
        return [sorted(NAMES), len(self.allowed), "two" in {"one", "two", "three", "four"}]


class Lambdas(CustomLogitProcessor):
    key = staticmethod(lambda value: -value)
    scaled = staticmethod(functools.partial(shifted, by=3))

    def __call__(self, logits, custom_param_list=None):
        return [sorted(logits, key=self.key), self.scaled(1)]


class Instance(CustomLogitProcessor):
    box = Box([1])

    def __call__(self, logits, custom_param_list=None):
        self.box.content.append(2)
        return self.box.content[:2]


class Tensors(CustomLogitProcessor):
    @torch.no_grad()
    def __call__(self, logits, custom_param_list=None):
        scores = torch.tensor(logits) + BIASES.float()
        top = torch.relu(F.softmax(scores, dim=-1)).argmax().item()
        return [scores.tolist(), top, str(BIASES.dtype), list(NOTHING.shape), np.exp(WEIGHTS * 0).sum().item()]


Made = make_scaled(3)
