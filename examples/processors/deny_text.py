"""Recipe 7: the tokenizer."""

import tempfile
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from logitport import EditProcessor, InvalidParams
from logitport.testing import ToyModel, simulate


class DenyText(EditProcessor):
    """Denies the ids with a text inside."""

    @classmethod
    def validate_params(cls, params):
        if not isinstance(params.get("text"), str) or not params["text"]:
            raise InvalidParams("set text to a string of one character or more")

    def edit(self, request, edits):
        edits.deny(request.tokenizer.ids_containing(request.params["text"]))


def small_tokenizer(folder):
    """Write a tokenizer.json; yours comes from a model."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=290, show_progress=False, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(["the fox and the ox", "a fox, two foxes", "boxes of the fox"] * 9, trainer)
    path = Path(folder, "tokenizer.json")
    tokenizer.save(str(path))
    return tokenizer, path


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        tokenizer, path = small_tokenizer(folder)
        model = ToyModel(tokenizer.get_vocab_size())
        o = tokenizer.encode("o").ids
        for chain in ([(DenyText, {"text": "ox"})], [("banned_strings", {"banned_strings": ["ox"]})]):
            result = simulate(chain, model, output=o, steps=2, tokenizer=path)  # "o", then what may follow
            (record,) = result.steps[1].processors
            print(record.processor, [tokenizer.decode([token_id]) for token_id in record.denied])
