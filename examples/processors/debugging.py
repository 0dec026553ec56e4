"""Recipe 8: what a processor does, and why it fails. `python debugging.py localhost:50051`"""

import sys

from story_engine import generate

from logitport import Client, EditProcessor, RequestsFailed
from logitport_testing import StoryModel, simulate


class NoRepeat(EditProcessor):
    """Denies the ids of the output so far."""

    def edit(self, request, edits):
        edits.deny(request.history.output_token_ids)


class NotTwice(EditProcessor):
    """Denies the last id."""

    def edit(self, request, edits):
        output = request.history.output_token_ids
        print("length of the output:", len(output))
        edits.deny([output[-1]])  # wrong: the output of a new request is empty


def see():
    model = StoryModel()
    chain = [(NoRepeat, {}), ("temperature", {"temperature": 0.5})]
    result = simulate(chain, model, model.encode("The king and the"), steps=5)
    for step in result.steps:
        no_repeat, temperature = step.processors
        denied = [model.token_text(token_id) for token_id in no_repeat.denied]
        print(f"{model.token_text(step.token_id):9} {no_repeat.moved:.2f} {temperature.moved:.2f}  denied: {denied}")


def debug(target):
    with Client(target) as client:
        client.register(NotTwice, name="me/not-twice", replace=True)
        try:
            generate(client, [("me/not-twice", {})])
        except RequestsFailed as error:
            print(error)
        for output in client.logs("me/not-twice"):
            print("log:", output)


if __name__ == "__main__":
    see()
    debug(sys.argv[1])
