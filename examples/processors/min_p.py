"""Recipe 4: a processor that reads logits, as a program."""

import torch

from logitport import Float, NotCapturable, TensorProcessor
from logitport_programs import capture
from logitport_testing import StoryModel, simulate


class MinP(TensorProcessor):
    """Denies ids that are improbable, compared with the best id."""

    params = {"min_p": Float(default=0.05, ge=0, le=1)}

    def process(self, logits, params, history):  # float[rows, vocab_size]; params.min_p is float32[rows]
        probabilities = logits.softmax(-1)
        limit = params.min_p[:, None] * probabilities.amax(-1, keepdim=True)
        return logits.masked_fill(probabilities < limit, -torch.inf)


class Undecided(TensorProcessor):
    def process(self, logits, params, history):
        if logits.max() > 10:
            logits = logits / 2
        return logits


if __name__ == "__main__":
    model = StoryModel()
    for min_p in (0.0, 0.1, 0.9):
        result = simulate([(MinP, {"min_p": min_p})], model, model.encode("Once upon a time"), steps=6)
        print(f"min_p={min_p}: allowed ids", [step.final.allowed for step in result.steps])
    print("MinP becomes a program of", len(capture(MinP).to_bytes()), "bytes")
    try:
        capture(Undecided)
    except NotCapturable as error:
        print(error)
