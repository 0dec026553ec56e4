"""Recipe 2: parameters of a request."""

from logitport import EditProcessor, Float, Int, InvalidArgument, TokenIds
from logitport_testing import StoryModel, simulate


class BiasIds(EditProcessor):
    """Adds a number to the logits of some ids, in a part of the output."""

    params = {
        "ids": TokenIds(max_ids=100),
        "bias": Float(default=3.0, ge=-100, le=100),
        "first": Int(default=0, ge=0),
        "last": Int(default=1_000_000, ge=0),
    }

    @classmethod
    def validate_params(cls, params):
        super().validate_params(params)
        if "first" in params and "last" in params and params["first"] > params["last"]:
            raise InvalidArgument(f"first is {params['first']}, and last is {params['last']}: set first <= last")

    def edit(self, request, edits):
        position = request.history.length - request.history.prompt_length  # of the next id in the output
        if request.params["first"] <= position <= request.params["last"]:
            edits.bias(request.params["ids"], request.params["bias"])


if __name__ == "__main__":
    model = StoryModel()
    prompt = model.encode("Once upon a time")
    (fox,) = model.encode(" fox")
    for params in (
        {"ids": [fox], "bias": 6, "first": 4, "last": 4},
        {"ids": [fox], "bias": 500},
        {"ids": [fox], "bais": 5},
        {"bias": 5},
        {"ids": [fox], "first": 9, "last": 3},
    ):
        try:
            result = simulate([(BiasIds, params)], model, prompt, steps=8)
        except InvalidArgument as error:
            print(error.message)
        else:
            print(model.decode(result.output_token_ids))
