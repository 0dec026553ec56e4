"""Finds random numbers without a seed."""

from __future__ import annotations

import ast
import random
from typing import TYPE_CHECKING, Any

from logitport_lint.author_code import UNKNOWN, AuthorFunction, Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

_TORCH = frozenset(
    {"rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "bernoulli", "multinomial"}
    | {"normal", "poisson", "dropout", "gumbel_softmax"}
)
_TENSOR_METHODS = frozenset(
    {"bernoulli", "bernoulli_", "cauchy_", "exponential_", "geometric_", "log_normal_", "multinomial", "normal_"}
    | {"random_", "uniform_"}
)
# They make a generator, which is random only without a seed.
_GENERATORS = frozenset(
    {"Random", "RandomState", "Generator", "default_rng", "SeedSequence", "PCG64", "Philox", "MT19937", "SFC64"}
)
_ALWAYS = frozenset({("os", "urandom"), ("uuid", "uuid1"), ("uuid", "uuid4"), ("random", "SystemRandom")})
_REASON = "{} differs at each run, so that a result cannot be repeated: seed a generator from the request's parameters"


def draws(function: AuthorFunction) -> Iterator[Finding]:
    """Yield the calls in a function that draw random numbers from a generator without a seed of its own."""
    for node in ast.walk(function.node):
        if isinstance(node, ast.Call) and _is_random(function, node):
            name = ast.unparse(node.func)
            yield function.finding("draw", name, node, _REASON.format(f"{name}()"))


def _is_random(function: AuthorFunction, call: ast.Call) -> bool:
    if any(keyword.arg == "generator" for keyword in call.keywords):
        return False
    called = call.func
    if isinstance(called, ast.Attribute):
        owner = function.resolve(called.value)
        if owner is UNKNOWN:
            of_instance = isinstance(called.value, ast.Attribute)  # may be a generator that it has seeded
            return called.attr in _TENSOR_METHODS and not of_instance
        return _draws(_home(owner), called.attr, call) or (_is_generator(owner) and not called.attr.startswith("set"))
    target = function.resolve(called)
    owner = getattr(target, "__self__", None)
    name = str(getattr(target, "__name__", ""))
    return target is not UNKNOWN and (_is_generator(owner) or _draws(_home(target), name, call))


def _home(value: Any) -> str:
    """The module that an object is, or is defined in; numpy's and torch's as their users name them."""
    if isinstance(value, type(ast)):
        return value.__name__
    module = str(getattr(value, "__module__", "") or "")
    module = "numpy.random" if module.startswith("numpy.random") else module
    return "torch" if module.startswith("torch.") or module == "torch._C" else module


def _draws(module: str, name: str, call: ast.Call) -> bool:
    if name in _GENERATORS:
        return module in ("random", "numpy.random") and not call.args and not call.keywords
    if module in ("random", "secrets", "numpy.random"):
        return name == "getrandbits" or not name.startswith(("get", "set", "_"))
    return (module, name) in _ALWAYS or (module in ("torch", "torch.nn.functional") and name in _TORCH)


def _is_generator(value: Any) -> bool:
    """Whether it is a generator of Python or numpy. One of a module or a class is shared by all requests."""
    return isinstance(value, random.Random) or type(value).__module__.startswith("numpy.random.")
