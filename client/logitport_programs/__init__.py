"""Programs: processors that read logits, as data that is verified and runs where the logits are.

authoring       the base class for authors, and what it declares
capturing       makes a program of such a class
lifting         makes a program of a processor of another contract
types           element types, sizes and shapes of values
program         a program, its canonical bytes and its digest
rules           what each operator requires of its inputs, and the type of its result
verifier        checks a program as a whole, before it runs
parameters      checks the parameters of a request, and arranges them by row
request_tokens  the ids of a request, counted incrementally
runtime         runs programs on the engine's own logits, with torch or numpy
cost            the worst case in milliseconds on this machine, and its limit
reference       the numpy interpreter: the executable form of docs/programs-spec.md
"""

from typing import TYPE_CHECKING

from logitport.system.lazy import names_of

if TYPE_CHECKING:
    from logitport_programs.capturing import capture
    from logitport_programs.cost import check_cost, milliseconds
    from logitport_programs.lifting import lift
    from logitport_programs.program import Parameter, Program, Value
    from logitport_programs.types import Element
    from logitport_programs.verifier import verify

__all__ = [
    "Element",
    "Parameter",
    "Program",
    "Value",
    "capture",
    "check_cost",
    "lift",
    "milliseconds",
    "verify",
]

__getattr__ = names_of(
    __name__,
    {
        "logitport_programs.capturing": "capture",
        "logitport_programs.cost": "check_cost milliseconds",
        "logitport_programs.lifting": "lift",
        "logitport_programs.program": "Parameter Program Value",
        "logitport_programs.types": "Element",
        "logitport_programs.verifier": "verify",
    },
)
