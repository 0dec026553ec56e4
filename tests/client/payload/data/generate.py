"""Writes the payloads that SGLang's `to_str()` makes of the classes below under the Python that runs this file.

    python3.12 - < generate.py > python3.12.json

Read from standard input, it leaves no path in them. Needs dill, and no SGLang: the base class goes by reference.
3.14 was run in Pyodide (npm `pyodide` 314, CPython compiled to WebAssembly) with dill's files on its file system.
Each entry is [payload, what the processor returns for LOGITS]; the two without code are written once, as strings.
"""

import json
import sys
import types

import dill

LOGITS = [3.0, -1.0, 2.0]
SGLANG = "sglang.srt.sampling.custom_logit_processor"

_module = None
for _name in ("sglang", "sglang.srt", "sglang.srt.sampling", SGLANG):
    _parent, _module = _module, types.ModuleType(_name)
    sys.modules[_name] = _module
    if _parent:
        setattr(_parent, _name.rpartition(".")[2], _module)
exec(
    "class CustomLogitProcessor: pass\nclass DisallowedTokensLogitsProcessor(CustomLogitProcessor): pass",
    vars(_module),
)
CustomLogitProcessor = _module.CustomLogitProcessor


class Trivial(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        return logits


class Arithmetic(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        first, second, third = logits
        return [first + second * 2 - 1, -second, third if third is not None else first]


class Method(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        logits.append(4.0)
        return logits


class Constants(CustomLogitProcessor):
    banned = 1

    def __call__(self, logits, custom_param_list=None):
        logits[self.banned] = -1e9
        return logits


class Loop(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        total = 0.0
        for value in logits:
            if value < 0:
                continue
            total += value
        return total


class While(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        a, b = 48, 18
        while b:
            a, b = b, a % b
        return a


class Comprehension(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        return [[value * 2 for value in logits], sorted({int(value) for value in logits}), {str(i): i for i in (1, 2)}]


class TryExcept(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        try:
            return logits[7]
        except IndexError as error:
            return type(error).__name__
        finally:
            logits.clear()


class Closure(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        count = 0

        def scaled(factor):
            nonlocal count
            count += 1
            return [value * factor for value in logits]

        return [scaled(2), scaled(3), count]


class Generator(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        def running():
            total = 0.0
            for value in logits:
                total += value
                yield total

        return list(running())


class FString(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        return f"{logits[0]:.1f} of {logits!r}"


class Super(CustomLogitProcessor):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __call__(self, logits, custom_param_list=None):
        self.seen.extend(logits)
        return super().__eq__(self) is True and self.seen


class Match(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        match logits:
            case [float(first), *rest] if first > 0:
                return [first, len(rest)]
            case _:
                return None


class Walrus(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        return [half for value in logits if (half := value / 2) > 0]


class With(CustomLogitProcessor):
    def __enter__(self):
        return "entered"

    def __exit__(self, *error):
        return True

    def __call__(self, logits, custom_param_list=None):
        with self as state:
            raise ValueError(state)
        return state


class Keywords(CustomLogitProcessor):
    def top(self, logits, *, count=1, **options):
        return sorted(logits, reverse=options["reverse"])[:count]

    def __call__(self, logits, custom_param_list=None):
        options = {"count": 2, "reverse": True}
        return self.top(logits, **options)


class Lambda(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        return sorted(logits, key=lambda value: -value)


class Slices(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        logits[1:] = logits[:-1]
        return logits


class Boolean(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        return custom_param_list or (logits and 2.0 in logits and not 9.0 > logits[0] > 5.0)


class Assertion(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        assert len(logits) == 3, "three"
        return len(logits)


class Nested(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        class Counter:
            start = 5

            def up(self):
                return self.start + 1

        return Counter().up()


class Coroutine(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        async def later():
            return logits

        try:
            later().send(None)
        except StopIteration as stop:
            return stop.value


class CoroutineMethod(CustomLogitProcessor):
    async def __call__(self, logits, custom_param_list=None):
        return logits


class StarArguments(CustomLogitProcessor):
    def __call__(self, *args):
        return max(*args[0])


class Deletion(CustomLogitProcessor):
    def __call__(self, logits, custom_param_list=None):
        kept = {"a": logits}
        del kept["a"], logits[0]
        return [logits, kept]


class WithoutCode(_module.DisallowedTokensLogitsProcessor):
    token_ids = (1, 2)


def result(cls):
    returned = cls()(LOGITS.copy(), None)
    if isinstance(returned, types.CoroutineType):
        try:
            returned.send(None)
        except StopIteration as stop:
            return stop.value
    return returned


def to_str(cls):
    return json.dumps({"callable": dill.dumps(cls).hex()})


if __name__ == "__main__":
    shipped = [cls for cls in list(globals().values()) if isinstance(cls, type) and cls.__module__ == "__main__"]
    entries = {cls.__name__: [to_str(cls), result(cls)] for cls in shipped if cls is not WithoutCode}
    entries["WithoutCode"] = to_str(WithoutCode)
    entries["ByReference"] = to_str(_module.DisallowedTokensLogitsProcessor)
    json.dump(entries, sys.stdout, indent=0)
    sys.stdout.write("\n")
