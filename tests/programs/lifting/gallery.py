"""Processors of other contracts, as authors write them."""

from __future__ import annotations

import torch

from logitport import CustomLogitProcessor

INF = float("inf")


class Temperature(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list):
        temperatures = torch.tensor([p["temperature"] for p in custom_param_list], device=logits.device)
        return logits / temperatures[:, None]


class MinP(CustomLogitProcessor):
    """Takes rows without parameters, converts, and names a dtype."""

    def __call__(self, logits, custom_param_list=None):
        if not custom_param_list:
            return logits
        min_p = [float((p or {}).get("min_p", 0.1)) for p in custom_param_list]
        least = torch.tensor(min_p, device=logits.device, dtype=torch.float32).unsqueeze(1)
        probs = logits.softmax(-1)
        return logits.masked_fill(probs < least * probs.amax(-1, keepdim=True), -INF)


class TopK(CustomLogitProcessor):
    """Asserts the number of rows, and uses an integer as an index."""

    def __call__(self, logits, custom_param_list):
        assert len(custom_param_list) == logits.shape[0]
        k = torch.tensor([p.get("k", 50) for p in custom_param_list], device=logits.device)
        ordered = logits.sort(-1).values
        place = (ordered.size(1) - k).clamp(min=0, max=logits.shape[-1] - 1)
        return logits.masked_fill(logits < ordered.gather(1, place.unsqueeze(1)), -INF)


class InOtherForms(CustomLogitProcessor):
    """Makes tensors by a loop, by stack, by as_tensor, and by new_tensor."""

    def __call__(self, logits, custom_param_list):
        scales, switches = [], []
        for p in custom_param_list:
            scales.append(p["scale"])
            switches.append(bool(p.get("on", True)))
        pairs = torch.as_tensor([[p.get("a", 1.0), p.get("b", 2.0)] for p in custom_param_list])
        shift = torch.stack([torch.tensor(p["shift"], dtype=torch.float32) for p in custom_param_list])
        changed = logits * logits.new_tensor(scales).unsqueeze(-1) * pairs[:, :1] + pairs[:, 1:] - shift[:, None]
        return torch.where(torch.tensor(switches)[:, None], changed, logits)


class WithoutGradients(CustomLogitProcessor):
    @torch.no_grad()
    def __call__(self, logits, custom_param_list):
        scales = torch.tensor([float(p["scale"]) for p in custom_param_list], dtype=logits.dtype)
        return logits.mul_(scales.clamp(min=1e-5).reshape(-1, 1))


class Weighted(CustomLogitProcessor):
    """Holds constants."""

    def __init__(self, denied=(3, 5)):
        self.denied = list(denied)
        self.scale = torch.tensor([0.5, 2.0])

    def __call__(self, logits, custom_param_list):
        logits[:, self.denied] = -INF
        return logits * self.scale[1]


# Each with its line, and texts of the message.


class LoopOverRows(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list):
        for row, params in enumerate(custom_param_list):
            logits[row] = logits[row] / params["temperature"]
        return logits


class LoopOverRowsWithoutParameters(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list):
        for row in range(len(custom_param_list)):
            logits[row, 5] = -INF
        return logits


class Branches(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list):
        scales = [p["scale"] if p["scale"] > 0 else 1.0 for p in custom_param_list]
        return logits * torch.tensor(scales)[:, None]


class Divides(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list):
        return logits * torch.tensor([1.0 / p["scale"] for p in custom_param_list])[:, None]


class TestsTypes(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list):
        scales = [p["scale"] if isinstance(p["scale"], float) else 1.0 for p in custom_param_list]
        return logits * torch.tensor(scales)[:, None]


class Formats(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list):
        scales = [float(f"{p['scale']}") for p in custom_param_list]
        return logits * torch.tensor(scales)[:, None]


class OneForAll(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list):
        return logits / torch.tensor(custom_param_list[0]["scale"])


class Reversed(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list):
        scales = [p["scale"] for p in custom_param_list][::-1]
        return logits * torch.tensor(scales)[:, None]


class NoDefault(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list):
        return logits * torch.tensor([p.get("scale") for p in custom_param_list])[:, None]


class TwoDefaults(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list):
        first = torch.tensor([p.get("scale", 1.0) for p in custom_param_list])
        return logits * first[:, None] * torch.tensor([p.get("scale", 2.0) for p in custom_param_list])[:, None]


class AsksForKeys(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list):
        scales = [p["scale"] if "scale" in p else 1.0 for p in custom_param_list]  # noqa: SIM401
        return logits * torch.tensor(scales)[:, None]


class ThinkingBudget(CustomLogitProcessor):
    """Counts the ids since the thinking began."""

    start, end = 7, 8

    def __call__(self, logits, custom_param_list):
        for row, params in enumerate(custom_param_list):
            ids = [*params["__req__"].origin_input_ids, *params["__req__"].output_ids]
            if self.start in ids and self.end not in ids and len(ids) - ids.index(self.start) > params["budget"]:
                logits[row] = -INF
                logits[row, self.end] = 0
        return logits


class Counts(CustomLogitProcessor):
    calls = 0

    def __call__(self, logits, custom_param_list):
        self.calls += 1
        return logits / 2


class Caches(CustomLogitProcessor):
    """Keeps a mask of the first width that it has seen."""

    cache = {}

    def __call__(self, logits, custom_param_list):
        if "mask" not in self.cache:
            self.cache["mask"] = torch.arange(logits.shape[-1]) == 3
        return logits.masked_fill(self.cache["mask"], -INF)


class TestsTypesExactly(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list):
        scales = []
        for p in custom_param_list:
            scale = p["scale"]
            scales.append(7.0 if type(scale) is int else scale)
        return logits * torch.tensor(scales)[:, None]


class CatchesAMissingKey(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list):
        scales = []
        for p in custom_param_list:
            try:
                scales.append(p["scale"])
            except KeyError:
                scales.append(1.0)
        return logits * torch.tensor(scales)[:, None]


class Validates(Temperature):
    @classmethod
    def validate_params(cls, params):
        if params["temperature"] <= 0:
            raise ValueError("temperature")


class SkipsEmpty(CustomLogitProcessor):
    """Behaves otherwise without parameters, which no symbol shows."""

    def __call__(self, logits, custom_param_list):
        if not any(custom_param_list):
            return logits
        return logits / torch.tensor([p.get("scale", 2.0) for p in custom_param_list])[:, None]


class MixesRows(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list):
        return logits - logits.mean(0)


class IsRandom(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list):
        return logits + torch.rand_like(logits)


class ReadsNothing(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list):
        _ = [p["scale"] for p in custom_param_list]
        return logits / 2


# Of one row


def centered(output_ids, logits):
    logits[[3, 5]] = -INF
    logits[7] += 2
    return logits - logits.max()


def with_prompt(prompt_ids, output_ids, logits):
    return torch.where(logits.softmax(-1) < 1e-4, -INF, logits)


def never_twice(output_ids, logits):
    if output_ids:
        logits[output_ids[-1]] = -INF
    return logits


class DynamoTemperature:
    def __init__(self, temperature=0.7):
        self.temperature = temperature

    def __call__(self, input_ids, logits):
        logits.div_(self.temperature)


class DynamoForce:
    def __init__(self, token_id=5):
        self.token_id = token_id

    def __call__(self, input_ids, logits):
        kept = logits[self.token_id].clone()
        logits.fill_(-INF)
        logits[self.token_id] = kept


class DynamoSequence:
    """Keeps its place in a sequence."""

    def __init__(self):
        self.place = 0

    def __call__(self, input_ids, logits):
        self.place += 1
        logits[3] = -INF
