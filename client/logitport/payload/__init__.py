"""The wire format of shipped processors.

A payload is SGLang's string: JSON with a key "callable" that holds the hexadecimal digits of a dill pickle of a
processor (a class, in SGLang's dialect; see `logitport.dialects`). It also has the keys "python" and
"dill", and, for display only, "class" and "dialect"; SGLang ignores all four,
and "source", the source lines of its functions, for tracebacks. A program is wrapped in the same way,
under the key "program" instead of "callable".
The functions, in their order for a payload:

    dumps         processor -> string      encode, pickler, reductions, portability
    root_of       processor -> object      encode                            what dumps serializes of it
    state_of      processor -> StateDigest state                             whether it must be serialized again
    refer         class -> string          encode                            only the class's name
    seal_program  program -> string        envelope
    parse         string -> Payload        envelope, pickle_reader           nothing is unpickled
    unwrap        string -> Payload        envelope                          the pickle is not read
    labelled      bytes -> Payload         envelope                          of a payload that was parsed elsewhere
    sign          string -> string         signing
    check_python  refuses foreign code     interpreter, bytecode             nothing is unpickled
    loads         Payload -> processor     unpickle                          the only place that unpickles
    instantiate   class -> instance        unpickle
    wire_name     a class's name on the wire
"""

from typing import TYPE_CHECKING

from logitport.payload.envelope import (
    PROGRAM,
    Payload,
    display_name_of,
    holds_program,
    labelled,
    parse,
    seal_program,
    unwrap,
)
from logitport.payload.python_check import check_python
from logitport.payload.signature import Signature
from logitport.payload.signing import sign
from logitport.payload.wire_names import wire_name
from logitport.system.lazy import names_of

if TYPE_CHECKING:
    from logitport.payload.encode import dumps, refer, root_of
    from logitport.payload.state_digest import StateDigest, state_of
    from logitport.payload.unpickle import instantiate, loads

__all__ = [
    "PROGRAM",
    "Payload",
    "Signature",
    "StateDigest",
    "check_python",
    "dumps",
    "holds_program",
    "instantiate",
    "labelled",
    "loads",
    "parse",
    "refer",
    "root_of",
    "seal_program",
    "sign",
    "state_of",
    "display_name_of",
    "unwrap",
    "wire_name",
]

# They need dill; a server's front door, which serializes and loads no processor, does not.
__getattr__ = names_of(
    __name__,
    {
        "logitport.payload.encode": "dumps refer root_of",
        "logitport.payload.state_digest": "StateDigest state_of",
        "logitport.payload.unpickle": "instantiate loads",
    },
)
