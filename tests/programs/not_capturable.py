"""Methods `process` that cannot become programs, each with texts of its refusal."""

from __future__ import annotations

import random
import time

import torch

_CALLS = []
_LARGE = torch.zeros(2000, 1000)
ROWS = "dimension 0, the rows"


# Of one line, which the refusal names.
EXPRESSIONS = [
    (lambda self, logits, params, history: logits * params.x.max().item(), "mixes rows"),
    (lambda self, logits, params, history: logits * float(params.x[0]), ""),
    (lambda self, logits, params, history: torch.nn.functional.pad(logits, (1, 1), mode="replicate")[:, 1:-1], ""),
    (lambda self, logits, params, history: torch.nn.functional.pad(logits, (-1, 1)), "write a slice"),
    (lambda self, logits, params, history: torch.nn.functional.pad(logits, (0, 0, 1, 0))[1:], "rows"),
    (lambda self, logits, params, history: logits + torch.rand_like(logits), "is random"),
    (lambda self, logits, params, history: logits.scatter(-1, torch.multinomial(logits.exp(), 1), 0.0), "is random"),
    (lambda self, logits, params, history: logits + random.random(), "random number", "a program is computed once"),
    (lambda self, logits, params, history: logits + random.randint(0, 1), "random number"),
    (lambda self, logits, params, history: logits + time.time() % 7, "two captures differ here", "clock"),
    (
        lambda self, logits, params, history: logits.masked_fill(logits < 0, torch.finfo(logits.dtype).min),
        *("two captures differ here", "dtype of the logits"),
    ),
    (lambda self, logits, params, history: logits.half().exp() + logits, "torch.float16, which programs lack"),
    (lambda self, logits, params, history: logits.double().exp(), "torch.float64, which programs lack: use float32"),
    (lambda self, logits, params, history: torch.cumsum(logits, 0), ROWS),
    (lambda self, logits, params, history: logits - logits.amax(0), ROWS),
    (lambda self, logits, params, history: logits.sort(dim=0).values, ROWS),
    (lambda self, logits, params, history: logits.softmax(0), ROWS),
    (lambda self, logits, params, history: logits.flip(0), ROWS),
    (lambda self, logits, params, history: logits.gather(0, torch.zeros_like(logits, dtype=torch.int64)), ROWS),
    (lambda self, logits, params, history: logits - logits.max(), "mixes rows: set dim=-1"),
    (lambda self, logits, params, history: logits.roll(1, 0), "operator that programs lack"),
    (lambda self, logits, params, history: logits + logits[0], "one row"),
    (lambda self, logits, params, history: logits + logits[:1], "selects rows"),
    (lambda self, logits, params, history: logits + logits[torch.tensor([0])], "index of rows"),
    (lambda self, logits, params, history: logits.T.softmax(0).T, "rows must stay dimension 0"),
    (lambda self, logits, params, history: logits.flatten().softmax(-1).view(logits.shape), "rows"),
    (lambda self, logits, params, history: logits + torch.arange(logits.shape[0])[:, None], "rows"),
    (lambda self, logits, params, history: logits * logits.shape[0], "the number of rows is used as a number"),
    (
        lambda self, logits, params, history: logits + (params.x[:, None] - params.x[None]).sum(-1, keepdim=True),
        "rows are not dimension 0",
    ),
    (
        lambda self, logits, params, history: torch.stack([row * x for row, x in zip(logits, params.x, strict=True)]),
        "fixes the number of rows",
    ),
    (
        lambda self, logits, params, history: logits if logits.shape[-1] > 6000 else -logits,
        "fixes the width of the logits",
    ),
    (lambda self, logits, params, history: logits + torch.zeros(5003), "fixes the width of the logits"),
    (lambda self, logits, params, history: logits + params.x, "The size of tensor a", "write x[:, None]"),
    (lambda self, logits, params, history: logits + logits[logits > 0].sum(), "a size depends on values (a mask"),
    (lambda self, logits, params, history: torch.special.erf(logits), "operator that programs lack"),
    (lambda self, logits, params, history: logits + 1 // 0, "process cannot be traced: ZeroDivisionError: "),
    (lambda self, logits, params, history: logits + history.ids[:, -1:], "set `window` of the class"),
    (lambda self, logits, params, history: logits + _LARGE.sum(), "constant of [2000, 1000]"),
    (lambda self, logits, params, history: logits > 0, "must return the logits"),
    (lambda self, logits, params, history: logits[:, :4000], "must return the logits"),
    (lambda self, logits, params, history: None, "not a tensor"),
    (lambda self, logits, params, history: logits.clone(), "returns the logits as they are"),
    (lambda self, logits, params, history: logits + 1, "parameter 'x' of program", "is not used: remove it"),
    (
        lambda self, logits, params, history: logits.sort(-1).values + (-logits).sort(-1).values + params.x[:, None],
        "a program has 2 sorts; the limit is 1",
    ),
]

# Of several lines: the refusal names the given one.
FUNCTIONS = []


def refused(line, *texts):
    def keep(process):
        FUNCTIONS.append((process, line, texts))
        return process

    return keep


@refused("if (logits > 0).any():", "depends on a value of a tensor", "torch.where")
def branches(self, logits, params, history):
    if (logits > 0).any():
        return logits
    return -logits


@refused('self.n = getattr(self, "n", 0) + 1', "self.n changes in a call", "a program has no state")
def counts_its_calls(self, logits, params, history):
    self.n = getattr(self, "n", 0) + 1
    return logits + self.n


@refused("type(self).n = 3", "Author.n changes in a call")
def changes_its_class(self, logits, params, history):
    type(self).n = 3
    return logits + self.n


@refused("_CALLS.append(1)", "_CALLS changes in a call")
def changes_a_global(self, logits, params, history):
    _CALLS.append(1)
    return logits + 2


@refused("logits.masked_fill(logits < 0, 0)", "masked_fill() returns a new tensor", "as they are")
def drops_its_result(self, logits, params, history):
    logits.masked_fill(logits < 0, 0)
    return logits


@refused("row = row / 2", "fixes the number of rows", "the new value of 'row' is never used")
def changes_no_row(self, logits, params, history):
    for row in logits:
        row = row / 2  # noqa: PLW2901
    return logits


@refused("logits[0] = 0.0", "row")
def writes_one_row(self, logits, params, history):
    logits[0] = 0.0
    return logits
