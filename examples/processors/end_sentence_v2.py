"""Recipe 9: a new version, which makes a period more probable before it forces one."""

from logitport import EditProcessor, Float, Int


class EndSentence(EditProcessor):
    """Ends a sentence that gets too long, if possible where the model would end it."""

    params = {"max_ids": Int(ge=1), "period": Int(default=17, ge=0), "slope": Float(default=1.0, ge=0)}

    def start(self, request):
        request.state = 0
        for token_id in request.history.output_token_ids:
            self.advance(request, token_id)

    def advance(self, request, token_id):
        request.state = 0 if token_id == request.params["period"] else request.state + 1

    def edit(self, request, edits):
        missing = request.params["max_ids"] - request.state
        if missing <= 0:
            edits.force(request.params["period"])
        elif missing <= 3:
            edits.bias([request.params["period"]], request.params["slope"] * (4 - missing))
