"""Recipe 1: deny a token id."""

from logitport import EditProcessor
from logitport_testing import StoryModel, simulate


class BanKing(EditProcessor):
    def edit(self, request, edits):
        edits.deny([9])  # the word " king" of the model below


if __name__ == "__main__":
    model = StoryModel()
    prompt = model.encode("Once upon a time")
    for chain in ([], [(BanKing, {})]):
        result = simulate(chain, model, prompt, steps=20)
        print(model.decode(result.output_token_ids))
