"""Recipe 6: large constants, helpers and globals. `python rare_words.py localhost:50051`"""

import sys

import numpy as np

from logitport import Client, EditProcessor
from logitport_testing import StoryModel, simulate

VOCAB_SIZE = 151_936
FREQUENCY = np.zeros(VOCAB_SIZE, np.float32)  # the logarithm of each word's frequency
FREQUENCY[: StoryModel().vocab_size] = StoryModel()([])
STRENGTH = 0.6


def penalties(vocab_size):
    return -STRENGTH * FREQUENCY[:vocab_size]


class RareWords(EditProcessor):
    """Prefers words that are rare in general."""

    def edit(self, request, edits):
        edits.bias(np.arange(request.vocab_size), penalties(request.vocab_size))


def change_strength(client):
    global STRENGTH
    first = client.register(RareWords)
    STRENGTH = 0.9
    second = client.register(RareWords)
    print("the same:", second.digest == first.digest)


if __name__ == "__main__":
    model = StoryModel()
    shipped = RareWords.to_str()
    print(f"{len(shipped) / 1e6:.1f} MB")
    for processor in (RareWords, shipped):
        result = simulate([(processor, {})], model, model.encode("The fox"), steps=12)
        print(model.decode(result.output_token_ids))
    with Client(sys.argv[1]) as client:
        change_strength(client)
