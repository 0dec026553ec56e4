"""Log-probabilities for trainers: the distribution that an engine sampled from, replayed with gradients.

Needs torch. [Training](docs/training.md) is the page for its users.
"""

from logitport.training.log_probs import ChainReplay, replay
from logitport.training.rollout import Rollout

__all__ = ["ChainReplay", "Rollout", "replay"]
