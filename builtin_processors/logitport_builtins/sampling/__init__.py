"""Built-ins that read logits: temperature, truncations of the distribution, and the repetition penalty.

Their classes are captured as programs, which are committed in `logitport_builtins.programs`. After a change to a class,
run `make builtin-programs`.

Probabilities are computed in float32, whatever the dtype of the logits. A row with only -inf stays as it
is.
"""

from logitport_builtins.sampling.cutoffs import Epsilon, Eta, MinP, TypicalP
from logitport_builtins.sampling.repetition_penalty import RepetitionPenalty
from logitport_builtins.sampling.temperature import Temperature
from logitport_builtins.sampling.top_k_top_p import TopK, TopP

__all__ = ["Epsilon", "Eta", "MinP", "RepetitionPenalty", "Temperature", "TopK", "TopP", "TypicalP"]
