"""Dialects: the contracts that processors are written for, and the code that recognises a processor's dialect.

    edits         an EditProcessor class: history in, edits out
    sglang        a class: __call__(logits, custom_param_list)
    vllm_v1       a class: update_state(batch_update), apply(logits)
    vllm_request  a class: new_req_logits_processor(params); or a function (output_ids, logits) or
                  (prompt_ids, output_ids, logits)
    vllm_v2       a class: add_request(...), apply(logits, ctx)
    transformers  a class, an instance, a list of instances or a function: (input_ids, scores)
    dynamo        a class or an instance: __call__(input_ids, logits), which edits one row in place

A class is recognised by its base class, then by its methods; a function by its parameters. Nothing here imports an
engine: a base class is matched by its module and name.
"""

from __future__ import annotations

import functools
import inspect
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

EDITS, SGLANG, TRANSFORMERS, DYNAMO = "edits", "sglang", "transformers", "dynamo"
VLLM_V1, VLLM_REQUEST, VLLM_V2 = "vllm_v1", "vllm_request", "vllm_v2"
DIALECTS = (EDITS, SGLANG, VLLM_V1, VLLM_REQUEST, VLLM_V2, TRANSFORMERS, DYNAMO)
# Dialects that ship only classes, never an instance or a function: SGLang's strings hold a class.
OF_CLASSES = frozenset({EDITS, SGLANG})
# Selects the one of vLLM's three dialects that fits the processor's methods.
VLLM = "vllm"

# The base classes of logitport and SGLang, matched by name: a class of a real SGLang has SGLang's own base.
_EDIT_PROCESSOR, _CUSTOM_PROCESSOR = "EditProcessor", "CustomLogitProcessor"

# (prefix of the module's name, class name) of each engine's base class, and its dialect.
_BASES = {
    ("vllm.v1.worker.gpu.", "LogitsProcessor"): VLLM_V2,
    ("vllm.v1.sample.", "AdapterLogitsProcessor"): VLLM_REQUEST,
    ("vllm.v1.sample.", "LogitsProcessor"): VLLM_V1,
    ("transformers.", "LogitsProcessor"): TRANSFORMERS,
    ("transformers.", "LogitsProcessorList"): TRANSFORMERS,
    ("transformers.", "LogitsWarper"): TRANSFORMERS,
    ("dynamo.logits_processing", "BaseLogitsProcessor"): DYNAMO,
}


@dataclass(frozen=True)
class InDialect:
    """A processor with an explicit dialect, where it cannot be recognised: `InDialect(function, "transformers")`.

    Attributes:
        processor: the processor itself.
        dialect: one of `DIALECTS`, or "vllm".
    """

    processor: Any
    dialect: str


def recognise(processor: object) -> tuple[Any, str]:
    """Return the processor without its `InDialect`, and its dialect, one of `DIALECTS`.

    Args:
        processor: a class, an instance, a function, a functools.partial of a class or function, or InDialect of one.

    Raises:
        TypeError: it is not a processor, or its dialect cannot be recognised; the message says what to do.
    """
    author = author_of(processor)
    if isinstance(processor, InDialect):
        _check_not_builtin(author)
        return processor.processor, _explicit_dialect(processor)
    if isinstance(author, type):
        return processor, _class_dialect(author)
    return processor, _function_dialect(processor)


def author_of(processor: object) -> Any:
    """Return the class or function that the author wrote, below any `InDialect`, partial or instance."""
    while isinstance(processor, InDialect | functools.partial):
        processor = processor.processor if isinstance(processor, InDialect) else processor.func
    return processor if isinstance(processor, type) or inspect.isroutine(processor) else type(processor)


def makes_instances(processor: object) -> bool:
    """Whether the processor is a class, or a functools.partial of one."""
    return isinstance(processor, type | functools.partial) and isinstance(author_of(processor), type)


def missing_methods(cls: Any) -> list[str]:
    """Names of the abstract methods that a class does not define, sorted; [] for any other processor."""
    return sorted(cls.__abstractmethods__) if inspect.isabstract(cls) else []


def _explicit_dialect(processor: InDialect) -> str:
    dialect, author = processor.dialect, author_of(processor)
    if dialect == VLLM:
        fitting = [one for one in _by_methods(author) if one.startswith(VLLM)]
        if not fitting and isinstance(author, type) and not parameters(author):
            raise TypeError(f"{author.__qualname__} has the methods of no vLLM contract; see docs/dialects.md")
        dialect = next(iter(fitting), VLLM_REQUEST)
    if dialect not in DIALECTS:
        raise TypeError(f"there is no dialect {processor.dialect!r}: write one of {', '.join((*DIALECTS, VLLM))}")
    _check_base(author, dialect)
    if dialect in _METHODS and not all(hasattr(author, method) for method in _METHODS[dialect]):
        raise TypeError(f"{author.__qualname__} cannot be called as {dialect}: define {', '.join(_METHODS[dialect])}")
    if dialect in _REQUIREMENTS and not (isinstance(author, type) and _class_dialect(author) == dialect):
        raise TypeError(f"{author.__qualname__} cannot be called as {dialect}: {_REQUIREMENTS[dialect]}")
    return dialect


def _check_base(author: Any, dialect: str) -> None:
    """Raise TypeError if its base class means another dialect, and it lacks the methods of this one."""
    base, own = _base_dialect(author) if isinstance(author, type) else ("", "")
    # A missing base class, or the wrong one of these two, is reported by the caller, with what to define.
    if base and dialect not in (own, *_REQUIREMENTS, *_by_methods(author)):
        article = "an" if own == EDITS else "a"
        raise TypeError(
            f"{author.__qualname__} is {article} {base} (dialect {own!r}), and cannot be called as {dialect!r}"
        )


def _base_dialect(cls: type) -> tuple[str, str]:
    """Find the base class of logitport or SGLang, and its dialect, or ("", "")."""
    for parent in cls.__mro__:
        # A subclass of a logits-free processor that overrides __call__ is called as SGLang calls it.
        if _is(parent, _EDIT_PROCESSOR, "logitport.") and vars(parent)["__call__"] is cls.__call__:
            return _EDIT_PROCESSOR, EDITS
    if any(_is(parent, _CUSTOM_PROCESSOR, "logitport.", "sglang.") for parent in cls.__mro__):
        return _CUSTOM_PROCESSOR, SGLANG
    return "", ""


def _is(cls: type, name: str, *packages: str) -> bool:
    return cls.__name__ == name and cls.__module__.startswith(packages)


def _class_dialect(cls: type) -> str:
    _, own = _base_dialect(cls)
    if own:
        return EDITS if own == EDITS else _sglang_dialect(cls)
    for parent in cls.__mro__:
        for (module, name), dialect in _BASES.items():
            if parent.__name__ == name and parent.__module__.startswith(module):
                return _adapter_dialect(cls) if dialect == VLLM_REQUEST else dialect
    _check_not_builtin(cls)
    fitting = list(_by_methods(cls))
    if fitting:
        return fitting[0]
    return _sglang_dialect(cls)


def _check_not_builtin(author: Any) -> None:
    """Raise TypeError for a class of the standard library."""
    if isinstance(author, type) and author.__module__.partition(".")[0] in sys.stdlib_module_names:
        raise TypeError(f"a {author.__qualname__} is no processor: define a class, or a function")


def _adapter_dialect(cls: type) -> str:
    """Dialect of a subclass of vLLM's adapter: `vllm_v1` if it overrides the methods that see the whole batch."""
    own = {name for parent in cls.__mro__ if not parent.__module__.startswith("vllm.") for name in vars(parent)}
    return VLLM_V1 if own & {"update_state", "apply"} else VLLM_REQUEST


def _by_methods(cls: Any) -> Iterator[str]:
    """Find dialects by the methods of a class without a known base class."""
    has = functools.partial(hasattr, cls)
    if not isinstance(cls, type):
        return
    if has("add_request") and has("apply"):
        yield VLLM_V2
    if has("new_req_logits_processor"):
        yield VLLM_REQUEST
    if has("update_state") and has("apply"):
        yield VLLM_V1
    if parameters(cls)[:2] == ["input_ids", "scores"]:
        yield TRANSFORMERS
    if parameters(cls) == ["input_ids", "logits"]:
        yield DYNAMO


def _sglang_dialect(cls: type) -> str:
    """Return SGLang's dialect if instances can be called with (logits, custom_param_list); else raise TypeError."""
    call = _call(cls)
    if call is None:
        raise TypeError(f"{cls.__qualname__} has no __call__: derive it from CustomLogitProcessor")
    try:
        signature = inspect.signature(call, follow_wrapped=False)
    except (AttributeError, ValueError):  # not a descriptor, or written in C: the signature is unknown
        return SGLANG
    try:
        signature.bind("logits", "custom_param_list")
    except TypeError as error:
        raise TypeError(
            f"wrong arity of __call__: {error}: it takes {signature}, and is called with (logits, custom_param_list)"
        ) from None
    return SGLANG


def _function_dialect(function: Any) -> str:
    names = parameters(function)
    if names[:2] == ["input_ids", "scores"]:
        return TRANSFORMERS
    if len(names) == 3 or (len(names) == 2 and names[1] == "logits"):
        return VLLM_REQUEST
    author = author_of(function)
    raise TypeError(
        f"{getattr(author, '__qualname__', author)} takes ({', '.join(names)}), which fits no dialect; "
        "write (output_ids, logits), (prompt_ids, output_ids, logits) or (input_ids, scores), or name the dialect"
    )


def parameters(callable_: Any) -> list[str]:
    """Names of the positional parameters of a function, or of a class's instances; [] if they are unknown."""
    try:
        call = _call(callable_) if isinstance(callable_, type) else callable_
        every = [] if call is None else inspect.signature(call).parameters.values()
        return [one.name for one in every if one.kind not in {one.KEYWORD_ONLY, one.VAR_KEYWORD}]
    except (AttributeError, TypeError, ValueError):
        return []


def _call(cls: type) -> Any:
    """`__call__` of the class, bound to a placeholder because no instance exists yet, or None."""
    call = next((vars(parent)["__call__"] for parent in cls.__mro__ if "__call__" in vars(parent)), None)
    return None if call is None else call.__get__(object(), cls)


_METHODS = {VLLM_V1: ("update_state", "apply"), VLLM_V2: ("add_request", "apply")}
_REQUIREMENTS = {
    EDITS: "derive a class from EditProcessor",
    SGLANG: "pass a class with instances that are called with (logits, custom_param_list)",
}
