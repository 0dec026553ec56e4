"""Methods `process` that cannot become programs: (method, text of its line, text of the refusal)."""

from __future__ import annotations

import random
import time

import torch

CASES = []
_CALLS = []


def refused(line, *texts):
    def keep(process):
        CASES.append((process, line, texts))
        return process

    return keep


@refused("if (logits > 0).any():", "depends on a value of a tensor", "torch.where")
def branches(self, logits, params, history):
    if (logits > 0).any():
        return logits
    return -logits


@refused("params.x.max().item()", "mixes rows")
def takes_an_item(self, logits, params, history):
    return logits * params.x.max().item()


@refused("float(params.x[0])", "")
def takes_a_float(self, logits, params, history):
    return logits * float(params.x[0])


@refused('pad(logits, (1, 1), mode="replicate")', "")
def pads_with_other_logits(self, logits, params, history):
    return torch.nn.functional.pad(logits, (1, 1), mode="replicate")[:, 1:-1]


@refused("pad(logits, (-1, 1))", "write a slice")
def pads_by_less_than_nothing(self, logits, params, history):
    return torch.nn.functional.pad(logits, (-1, 1))


@refused("pad(logits, (0, 0, 1, 0))", "rows")
def pads_with_rows(self, logits, params, history):
    return torch.nn.functional.pad(logits, (0, 0, 1, 0))[1:]


@refused("torch.rand_like(logits)", "is random")
def draws(self, logits, params, history):
    return logits + torch.rand_like(logits)


@refused("torch.multinomial(", "is random")
def samples(self, logits, params, history):
    return logits.scatter(-1, torch.multinomial(logits.softmax(-1), 1), 0.0)


@refused("logits + random.random()", "random number", "a program is computed once")
def draws_in_python(self, logits, params, history):
    return logits + random.random()


@refused("logits + random.randint(0, 1)", "random number", "a program is computed once")
def draws_one_of_few(self, logits, params, history):
    return logits + random.randint(0, 1)


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


@refused("", "returns the logits as they are")
def does_nothing(self, logits, params, history):
    return logits.clone()


@refused("logits + time.time() % 7", "two captures differ here", "clock")
def reads_the_clock(self, logits, params, history):
    return logits + time.time() % 7


@refused("torch.finfo(logits.dtype).min", "two captures differ here", "dtype of the logits")
def reads_the_dtype(self, logits, params, history):
    return logits.masked_fill(logits < 0, torch.finfo(logits.dtype).min)


@refused("logits.half()", "torch.float16, which programs lack")
def casts_to_half(self, logits, params, history):
    return logits.half().exp() + logits


@refused("logits.double()", "torch.float64, which programs lack: use float32")
def casts_to_double(self, logits, params, history):
    return logits.double().exp()


@refused("torch.cumsum(logits, 0)", "dimension 0, the rows")
def sums_over_rows(self, logits, params, history):
    return torch.cumsum(logits, 0)


@refused("logits.amax(0)", "dimension 0, the rows")
def maximum_of_rows(self, logits, params, history):
    return logits - logits.amax(0)


@refused("logits.max()", "mixes rows: set dim=-1")
def maximum_of_all(self, logits, params, history):
    return logits - logits.max()


@refused("logits.sort(dim=0)", "dimension 0, the rows")
def sorts_rows(self, logits, params, history):
    return logits.sort(dim=0).values


@refused("logits.softmax(0)", "dimension 0, the rows")
def softmax_of_rows(self, logits, params, history):
    return logits.softmax(0)


@refused("logits.flip(0)", "dimension 0, the rows")
def reverses_rows(self, logits, params, history):
    return logits.flip(0)


@refused("logits.roll(1, 0)", "operator that programs lack")
def rotates_rows(self, logits, params, history):
    return logits.roll(1, 0)


@refused("logits[0]", "one row")
def reads_the_first_row(self, logits, params, history):
    return logits + logits[0]


@refused("logits[:1]", "selects rows")
def slices_rows(self, logits, params, history):
    return logits + logits[:1]


@refused("logits[0] = 0.0", "row")
def writes_one_row(self, logits, params, history):
    logits[0] = 0.0
    return logits


@refused("torch.tensor([0])]", "index of rows")
def indexes_rows(self, logits, params, history):
    return logits + logits[torch.tensor([0])]


@refused("logits.gather(0", "dimension 0, the rows")
def gathers_rows(self, logits, params, history):
    return logits.gather(0, torch.zeros_like(logits, dtype=torch.int64))


@refused("logits.T", "rows must stay dimension 0")
def transposes(self, logits, params, history):
    return logits.T.softmax(0).T


@refused("logits.flatten()", "rows")
def flattens(self, logits, params, history):
    return logits.flatten().softmax(-1).view(logits.shape)


@refused("torch.arange(logits.shape[0])", "rows")
def numbers_rows(self, logits, params, history):
    return logits + torch.arange(logits.shape[0])[:, None]


@refused("logits * logits.shape[0]", "the number of rows is used as a number")
def counts_rows(self, logits, params, history):
    return logits * logits.shape[0]


@refused("params.x[None]", "rows are not dimension 0")
def compares_rows(self, logits, params, history):
    return logits + (params.x[:, None] - params.x[None]).sum(-1, keepdim=True)


@refused("", "fixes the number of rows")
def loops(self, logits, params, history):
    return torch.stack([row * x for row, x in zip(logits, params.x, strict=True)])


@refused("", "fixes the width of the logits")
def branches_on_the_width(self, logits, params, history):
    return logits if logits.shape[-1] > 6000 else -logits


@refused("", "fixes the width of the logits")
def has_a_width(self, logits, params, history):
    return logits + torch.zeros(5003)


@refused("logits + params.x", "The size of tensor a", "write x[:, None]")
def forgets_none(self, logits, params, history):
    return logits + params.x


@refused("logits[logits > 0]", "a size depends on values (a mask as an index")
def selects(self, logits, params, history):
    return logits + logits[logits > 0].sum()


@refused("torch.special.erf(logits)", "operator that programs lack")
def uses_an_unknown_operator(self, logits, params, history):
    return torch.special.erf(logits)


@refused('raise ValueError("no")', "process cannot be traced: ValueError: no")
def raises(self, logits, params, history):
    raise ValueError("no")


@refused("history.ids[:, -1:]", "set `window` of the class")
def reads_no_window(self, logits, params, history):
    return logits + history.ids[:, -1:]


@refused("torch.zeros(2000, 1000)", "constant of [2000, 1000]")
def has_a_large_constant(self, logits, params, history):
    return logits + _LARGE.sum()  # torch.zeros(2000, 1000)


@refused("", "must return the logits")
def returns_a_mask(self, logits, params, history):
    return logits > 0


@refused("", "must return the logits")
def returns_half(self, logits, params, history):
    return logits[:, :4000]


@refused("", "not a tensor")
def returns_none(self, logits, params, history):
    return None


@refused("", "parameter 'x' of program", "is not used: remove it")
def ignores_its_parameter(self, logits, params, history):
    return logits + 1


@refused("", "a program has 2 sorts; the limit is 1")
def sorts_twice(self, logits, params, history):
    return logits.sort(-1).values + (-logits).sort(-1).values + params.x[:, None]


_LARGE = torch.zeros(2000, 1000)
