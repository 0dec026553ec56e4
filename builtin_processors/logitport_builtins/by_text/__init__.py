"""Built-ins by text: they use the operator's tokenizer."""

from logitport_builtins.by_text.banned_strings import BannedStrings
from logitport_builtins.by_text.force_prefix import ForcePrefix
from logitport_builtins.by_text.stop_on import StopOn

__all__ = ["BannedStrings", "ForcePrefix", "StopOn"]
