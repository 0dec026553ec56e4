from typing import Any
class _R:
    def requests(self, *a: Any) -> None: ...
class Recorder:
    def __init__(self, *a: Any) -> None:
        self.refusals = _R()
    def __getattr__(self, name: str) -> Any:
        return lambda *a, **k: None
class Reporter:
    def __init__(self, *a: Any) -> None: ...
    def close(self) -> None: ...
