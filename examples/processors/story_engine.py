"""A stand-in for an engine: generates with the model of a short story, through a server.

python story_engine.py localhost:50051 '[["no_repeat_ngram", {"ngram_size": 2}]]'
"""

import json
import sys

from logitport import Client, Request
from logitport_testing import StoryModel


def generate(client, chain, steps=20, prompt="Once upon a time"):
    """Return the generated text. The best id is chosen at each step."""
    model = StoryModel()
    token_ids = model.encode(prompt)
    request = Request(token_ids, processors=chain, request_id="story")
    output = []
    with client.session(vocab_size=model.vocab_size) as session:
        handle = session.add(request)
        for _ in range(steps):
            pending = session.step({handle: output[-1:]})
            logits = model([*token_ids, *output])[None]  # float32[1, vocab_size]
            pending.apply(logits)
            output.append(int(logits[0].argmax()))
    return model.decode(output)


if __name__ == "__main__":
    target, chain = sys.argv[1:]
    with Client(target) as client:
        print(generate(client, json.loads(chain)))
