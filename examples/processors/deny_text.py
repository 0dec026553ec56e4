"""Recipe 7: the tokenizer."""

from logitport import EditProcessor, InvalidArgument
from logitport_testing import StoryModel, simulate


class DenyText(EditProcessor):
    """Denies the ids with a text inside."""

    @classmethod
    def validate_params(cls, params):
        if not isinstance(params.get("text"), str) or not params["text"]:
            raise InvalidArgument("set text to a string of one character or more")

    def edit(self, request, edits):
        edits.deny(request.tokenizer.ids_containing(request.params["text"]))


if __name__ == "__main__":
    model = StoryModel()
    f_and_o = model.encode("fo")  # the ids of two letters
    for processor, params in ((DenyText, {"text": "fox"}), ("banned_strings", {"banned_strings": ["fox"]})):
        result = simulate([(processor, params)], model, model.encode("The "), output=f_and_o, steps=3)
        (record,) = result.steps[2].processors
        print(record.processor, "denies", [model.token_text(token_id) for token_id in record.denied])
