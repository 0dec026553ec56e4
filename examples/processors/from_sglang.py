"""Recipe 5: a processor that was written for SGLang."""

from logitport_testing import StoryModel, simulate

try:
    from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor
except ImportError:  # SGLang is not installed: the same interface
    from logitport import CustomLogitProcessor


class ForceAt(CustomLogitProcessor):
    """Forces the id `token_id` at the position `at` of the output."""

    def __call__(self, logits, custom_param_list=None):
        for row, params in zip(logits, custom_param_list, strict=True):
            if len(params["__req__"].output_ids) == params["at"]:
                forced = row[params["token_id"]].item()
                row.fill_(-float("inf"))
                row[params["token_id"]] = forced
        return logits


if __name__ == "__main__":
    model = StoryModel()
    (fox,) = model.encode(" fox")
    for processor in (ForceAt, ForceAt.to_str()):  # the class, or the string that clients of SGLang send
        chain = [(processor, {"token_id": fox, "at": 3})]
        print(model.decode(simulate(chain, model, model.encode("Once upon a time"), steps=8).output_token_ids))
