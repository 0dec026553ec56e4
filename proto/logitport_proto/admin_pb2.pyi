from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class DrainRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("sessions", "movable_sessions")
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    MOVABLE_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    sessions: int
    movable_sessions: int
    def __init__(self, sessions: _Optional[int] = ..., movable_sessions: _Optional[int] = ...) -> None: ...
