"""Processors with suspect lines, each marked by a comment with the kind of the finding."""

# ruff: noqa: PLW0603, PLW2901, RUF012, B010, RET504
from __future__ import annotations

import random
from random import randint

import numpy as np
import torch
from torch.nn import functional

from logitport import CustomLogitProcessor, EditProcessor, TensorProcessor

CALLS = 0
SEEN: list[int] = []
CACHE: dict[int, int] = {}
SHARED = random.Random(3)
DICE = np.random.default_rng(3)


class Frozen(TensorProcessor):
    def __init__(self):
        self.n = 0

    def process(self, logits, params, history):
        self.n += 1  # attribute
        self.last, other = logits, 1  # attribute
        setattr(self, "more", other)  # attribute
        return logits + self.n


class Classes(EditProcessor):
    n = 0
    ids = []
    own = []

    def __init__(self):
        self.own = []

    def start(self, request):
        type(self).n += 1  # class attribute
        self.__class__.n = 2  # class attribute
        Classes.n = 3  # class attribute
        self.ids.append(1)  # class attribute
        self.own.append(1)
        request.state = [1]
        request.state.append(2)

    @classmethod
    def validate_params(cls, params):
        cls.n = len(params)  # class attribute

    def edit(self, request, edits):
        edits.deny(self.ids)


def helper():
    SEEN.append(1)  # global
    SEEN[0] += 1  # global


class Globals(EditProcessor):
    def edit(self, request, edits):
        global CALLS
        CALLS += 1  # global
        helper()
        if 3 not in CACHE:
            CACHE[3] = 4
        counts = {}
        counts[1] = 2


def enclosed():
    calls = 0

    def process(input_ids, scores):
        nonlocal calls
        calls += 1  # enclosed variable
        inner = 0

        def count():
            nonlocal inner
            inner += 1

        count()
        return scores + calls

    return process


class Draws(CustomLogitProcessor):
    def __init__(self):
        self.random = random.Random(7)

    def __call__(self, logits, custom_param_list=None):
        logits += random.random()  # draw
        logits += randint(0, 1)  # draw
        logits += SHARED.random() + DICE.random()  # draw
        logits += np.random.rand()  # draw
        logits += torch.rand(3)  # draw
        logits = functional.dropout(logits)  # draw
        logits[0].uniform_()  # draw
        logits += np.random.default_rng().random()  # draw
        logits += self.random.random()
        seeded = np.random.default_rng(3)
        logits += seeded.random() + random.Random(5).random()
        return logits + torch.rand(3, generator=torch.Generator())


class Seeds(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        torch.manual_seed(3)
        return logits + torch.rand(3)


class Halves(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        for row in logits:
            row = row / 2  # discard
        for row, _ in zip(logits, custom_param_list, strict=True):
            if row.sum() > 0:
                row = row.masked_fill(row < 0, 0)  # discard
        for row in logits:
            for _ in range(3):
                row = row / 2  # discard
        logits.masked_fill(logits < 0, 0)  # discard
        torch.clamp(logits, 0, 1)  # discard
        return logits


class HalvesWell(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        for index, row in enumerate(logits):
            row = row / 2
            logits[index] = row
        last = None
        for row in logits:
            if last is not None:
                last.add_(1)
            row = row / 2
            last = row
        for row in logits:
            for _ in range(3):
                row.div_(2)
                row = row[:5]
        logits.masked_fill_(logits < 0, 0)
        torch.clamp(logits, 0, 1, out=logits)
        logits = logits / 2
        return logits


def for_dynamo(input_ids, logits):
    logits = logits / 2  # discard
