"""Recipe 3: state that follows the history."""

from logitport import EditProcessor, Int


class EndSentence(EditProcessor):
    """Forces a period when a sentence has too many ids."""

    params = {"max_ids": Int(ge=1), "period": Int(default=17, ge=0)}

    def start(self, request):
        request.state = 0  # length of the sentence so far
        for token_id in request.history.output_token_ids:
            self.advance(request, token_id)

    def advance(self, request, token_id):
        request.state = 0 if token_id == request.params["period"] else request.state + 1

    def edit(self, request, edits):
        if request.state >= request.params["max_ids"]:
            edits.force(request.params["period"])


class Forgetful(EndSentence):
    def start(self, request):
        request.state = 0  # wrong: the history may have outputs already


if __name__ == "__main__":
    from logitport_testing import LawBroken, StoryModel, check, simulate  # not needed where the class is used

    model = StoryModel()
    result = simulate([(EndSentence, {"max_ids": 6})], model, model.encode("Once upon a time"), steps=20)
    print(model.decode(result.output_token_ids))
    for processor in (EndSentence, Forgetful):
        try:
            check(processor, params=[{"max_ids": 2}], laws=["start", "rewind", "batch", "params"])
        except LawBroken as error:
            print(error)
        else:
            print(processor.__name__, "keeps the laws")
