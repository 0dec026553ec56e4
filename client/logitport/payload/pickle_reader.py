"""Reads a pickle's contents by simulating its opcodes on a stack of descriptions. Nothing is imported or called."""

from __future__ import annotations

import functools
import io
import pickle
import pickletools
import struct
from dataclasses import dataclass, field
from typing import Any

from logitport.errors import PayloadError

_CODE_ARGUMENTS = range(14, 21)  # from 3.6 to the alphas of 3.11


@dataclass(frozen=True)
class Global:
    """A reference by name."""

    module: str
    name: str


@dataclass
class Contents:
    """The imports and code objects of a pickle.

    Attributes:
        globals: every reference by name.
        codes: the arguments of every call that makes a code object.
        keys: strings that are keys of a dict, including the attributes of a class.
        marshalled: whether it unmarshals bytes, which can be code of any version.
    """

    globals: set[Global] = field(default_factory=set)
    codes: list[tuple[Any, ...]] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    marshalled: bool = False


# Cached because a payload is read three times (parsed, its Python checked, loaded), and a long list takes seconds.
@functools.lru_cache(maxsize=4)
def read(data: bytes) -> Contents:
    """Simulate the pickle to its end. The result is cached: do not change it.

    Raises:
        PayloadError: it is not a pickle; the message gives the position of the error.
    """
    reader = _Reader(len(data))
    file = io.BytesIO(data)
    position = 0
    try:
        for op, arg, at in pickletools.genops(file):
            position = at or 0
            reader.step(op, arg)
            if op.name != "STOP":
                file.seek(reader.skim(data, file.tell()))
    except (ValueError, IndexError, KeyError, Warning) as error:  # Warning: a bad escape where warnings are errors
        position = max(position, reader.skimmed)
        raise PayloadError(f'"callable" is not a pickle: after byte {position}: {error}') from error
    return reader.contents


_MARK = object()
_UNKNOWN = object()
# Opcodes of values and containers: a vocabulary has 150,000 of them, and pickletools takes 3 µs for each.
_SHORT_STRING, _SHORT_BYTES, _MEMOIZE = pickle.SHORT_BINUNICODE[0], pickle.SHORT_BINBYTES[0], pickle.MEMOIZE[0]
# Opcodes with a number of a fixed size.
_NUMBERS = {
    opcode[0]: struct.Struct(form)
    for opcode, form in (
        (pickle.BININT1, "<B"),
        (pickle.BININT2, "<H"),
        (pickle.BININT, "<i"),
        (pickle.BINFLOAT, ">d"),
        (pickle.BINGET, "<B"),
        (pickle.LONG_BINGET, "<I"),
    )
}
_WITHOUT_ARGUMENT = {ord(op.code): op for op in pickletools.opcodes if op.arg is None and op.name != "STOP"}
_REPEATED = (pickle.BINGET[0], pickle.LONG_BINGET[0])


class _Reader:
    """Pickle's stack machine over descriptions: constants, tuples and globals; all other values are `_UNKNOWN`.

    Attributes:
        contents: what was found so far.
        skimmed: position of the last opcode without an argument that `skim` has simulated.
    """

    def __init__(self, size: int) -> None:
        self.contents = Contents()
        self.skimmed = 0
        self._size = size
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def step(self, op: pickletools.OpcodeInfo, arg: Any) -> None:
        """Simulate one opcode. Raises IndexError or KeyError if the stack or memo lacks its operands."""
        match op.name:
            case "MEMOIZE" | "PUT" | "BINPUT" | "LONG_BINPUT":
                self._remember(len(self._memo) if arg is None else arg)
            case "GET" | "BINGET" | "LONG_BINGET":
                self._stack.append(self._memo[arg])
            case "GLOBAL":
                self._stack.append(self._global(*arg.split(" ", 1)))
            case "STACK_GLOBAL":
                name = self._pop()
                self._stack.append(self._global(self._pop(), name))
            case "NONE" | "NEWTRUE" | "NEWFALSE":
                self._stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[op.name])
            case "MARK":
                self._stack.append(_MARK)
            case "EMPTY_TUPLE" | "TUPLE1" | "TUPLE2" | "TUPLE3":
                count = len(op.stack_before)
                self._stack.append(tuple(reversed([self._pop() for _ in range(count)])))
            case "TUPLE":
                self._stack.append(tuple(self._pop_to_mark()))
            case "REDUCE" | "NEWOBJ":
                args = self._pop()
                self._stack.append(self._call(self._pop(), args))
            case "BUILD":
                self._pop()
            case "SETITEM" | "SETITEMS":
                items = self._pop_to_mark() if op.name == "SETITEMS" else [self._pop(), self._pop()][::-1]
                self.contents.keys.update(key for key in items[::2] if isinstance(key, str))
            case _:
                self._other(op, arg)

    def skim(self, data: bytes, position: int) -> int:
        """Simulate strings, bytes, numbers, repeated values and opcodes without an argument, as far as they follow.

        That is faster than to read them with pickletools.

        Returns:
            The position of the first opcode that is left to `step`, which also reports what is wrong with it.
        """
        stack, memo, end = self._stack, self._memo, len(data)
        while position + 1 < end:
            op = data[position]
            if op in (_SHORT_STRING, _SHORT_BYTES):
                stop = position + 2 + data[position + 1]
                if stop > end:
                    break
                value = data[position + 2 : stop]
                stack.append(value if op == _SHORT_BYTES else str(value, "utf-8", "surrogatepass"))
                position = stop
                if position < end and data[position] == _MEMOIZE:
                    memo[len(memo)] = stack[-1]
                    position += 1
            elif op in _NUMBERS:
                packed = _NUMBERS[op]
                stop = position + 1 + packed.size
                if stop > end:
                    break
                (number,) = packed.unpack_from(data, position + 1)
                if op in _REPEATED and number not in memo:
                    break
                stack.append(memo[number] if op in _REPEATED else number)
                position = stop
            elif op in _WITHOUT_ARGUMENT:
                self.skimmed = position
                self.step(_WITHOUT_ARGUMENT[op], None)
                position += 1
            else:
                break
        return position

    def _other(self, op: pickletools.OpcodeInfo, arg: Any) -> None:
        """Pop and push as many values as pickletools documents; a constant is the opcode's own argument."""
        for taken in reversed(op.stack_before):
            if taken is pickletools.stackslice:
                self._pop_to_mark()
            elif taken is not pickletools.markobject:
                self._pop()
        constant = arg if arg is not None and not op.stack_before else _UNKNOWN
        self._stack.extend(constant for _ in op.stack_after)

    def _pop(self) -> Any:
        if self._stack[-1] is _MARK:
            raise IndexError("a mark where a value should be")
        return self._stack.pop()

    def _pop_to_mark(self) -> list[Any]:
        values = []
        while self._stack[-1] is not _MARK:
            values.append(self._stack.pop())
        self._stack.pop()
        return values[::-1]

    def _remember(self, index: int) -> None:
        # The unpickler allocates memory for all indexes up to this one.
        if not 0 <= index < self._size:
            raise ValueError(f"{index} is not a place in the memo of a pickle of {self._size} bytes")
        self._stack.append(self._pop())  # raises for a mark, which cannot be memoized
        self._memo[index] = self._stack[-1]

    def _global(self, module: Any, name: Any) -> Any:
        if not (isinstance(module, str) and isinstance(name, str)):
            return _UNKNOWN
        found = Global(module, name)
        self.contents.globals.add(found)
        return found

    def _call(self, function: Any, args: Any) -> Any:
        if not isinstance(args, tuple):
            return _UNKNOWN
        match function:
            # The next two are the forms of bytes before protocol 3.
            case Global(module="_codecs", name="encode") if args[1:] == ("latin1",) and isinstance(args[0], str):
                return args[0].encode("latin1")
            case Global(name="bytes") if not args:
                return b""
            case Global(name="_load_type") if args and isinstance(args[0], str):  # dill's form of a builtin type
                return Global("builtins", args[0])
            case Global(module="marshal", name="loads") | Global(name="_unmarshal"):
                self.contents.marshalled = True
        if _makes_code(args):
            self.contents.codes.append(args)
        return _UNKNOWN


def _makes_code(args: tuple[Any, ...]) -> bool:
    """Whether a call makes a code object, by its arguments.

    The function's name does not show it: dill, cloudpickle and plain pickle call different functions.
    """
    fields = args if args and isinstance(args[0], int) else args[1:]  # dill writes the line table of 3.9 first
    return len(fields) in _CODE_ARGUMENTS and all(isinstance(value, int) for value in fields[:5])
