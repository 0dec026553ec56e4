"""Writes a run of the page as a test."""

from __future__ import annotations

import keyword
from pprint import pformat
from typing import TYPE_CHECKING, Any

from logitport.errors import InvalidArgument
from logitport_builtins import BUILTINS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from logitport_play.runs import Runs, RunSpec
    from logitport_play.watched_files import Files
    from logitport_testing import Simulation, StepRecord

_WIDTH = 110
_TEMPLATE = '''"""Exported by `logitport play`. {advice}"""

{imports}

CHAIN = {chain}
# Ids that were forced, by step; None where the id was chosen.
OUTPUT = {output}


def test_{name}():
    result = simulate(
        CHAIN,
        {model},
        {prompt},
        {steps},
        output=OUTPUT,
        temperature={temperature!r},
        seed={seed},
        eos_token_ids={eos!r},
        on_error={on_error!r},
    )
    assert result.output_token_ids == {tokens}{text}
    # Of each step, what each processor did: the numbers of denied and biased ids, and the forced id.
    effects = [[(len(one.denied), len(one.biased), one.forced) for one in step.processors] for step in result.steps]
    assert effects == {effects}
'''


def export_test(spec: RunSpec, runs: Runs, files: Files) -> str:
    """Run the specified chain to its end, and return a test that expects the same.

    Raises:
        InvalidArgument: a file of processors cannot be imported by its name, or as `Runs.run`.
    """
    result = runs.run(spec)
    while len(result.simulation.steps) < spec.steps and not result.ended:
        result = runs.run(spec)
    simulation, model = result.simulation, runs.model(spec.model)
    expression, imports = model.expression
    modules: dict[str, set[str]] = {}
    for entry in spec.chain:
        if entry.processor not in BUILTINS:
            _, _, name = entry.processor.partition(":")
            modules.setdefault(_module(files.path(entry.processor)), set()).add(name)
    effects = [[(len(one.denied), len(one.biased), one.forced) for one in step.processors] for step in simulation.steps]
    failed = any(record.error for step in simulation.steps for record in step.processors)
    own = [f"from {module} import {', '.join(sorted(names))}" for module, names in sorted(modules.items())]
    sources = " and ".join(f"{module}.py" for module in sorted(modules))
    return _TEMPLATE.format(
        advice=f"Save it beside {sources}, and run it with pytest." if modules else "Run it with pytest.",
        imports=_imports(own, imports),
        chain=_chain(spec),
        output=_literal(_output(simulation.steps), 0),
        name="_then_".join(_identifier(entry.processor) for entry in spec.chain) or "no_processors",
        model=expression,
        prompt=_literal(list(simulation.prompt_token_ids), 8),
        steps=len(simulation.steps),
        temperature=spec.temperature,
        seed=spec.seed,
        eos=tuple(model.eos_token_ids),
        on_error="isolate" if failed else "abort",
        tokens=_literal(simulation.output_token_ids, 4),
        text=_text(simulation),
        effects=_literal(effects, 4),
    )


def _imports(own: Sequence[str], of_model: str) -> str:
    ours = "from logitport_testing import simulate"
    if of_model.startswith("from logitport_testing"):
        ours, of_model = f"{of_model}, simulate", ""
    return "\n".join(line for line in (of_model, ours, *own) if line)


def _module(path: Path) -> str:
    if not path.stem.isidentifier() or keyword.iskeyword(path.stem):
        raise InvalidArgument(
            f"{path.name} cannot be imported by a test; give the file a name such as my_processors.py"
        )
    return path.stem


def _chain(spec: RunSpec) -> str:
    if not spec.chain:
        return "[]"
    lines = []
    for entry in spec.chain:
        own = entry.processor not in BUILTINS
        name = entry.processor.partition(":")[2] if own else repr(entry.processor)
        lines.append(f"    ({name}, {_literal(entry.params, 8)}),")
    return "\n".join(["[", *lines, "]"])


def _output(steps: Sequence[StepRecord]) -> list[int | None]:
    given = [step.token_id if step.given else None for step in steps]
    while given and given[-1] is None:
        given.pop()
    return given


def _literal(value: Any, indent: int) -> str:
    written = pformat(value, width=_WIDTH - indent, compact=True, sort_dicts=False)
    return written.replace("\n", "\n" + " " * indent)


def _text(simulation: Simulation) -> str:
    """The output as a comment, on a line of its own."""
    if not simulation.texts:
        return ""
    text = "".join(simulation.texts[token_id] for token_id in simulation.output_token_ids)
    return f"\n    # {text[:_WIDTH]!a}"


def _identifier(name: str) -> str:
    last = name.rpartition(":")[2]
    return "".join(
        f"_{character.lower()}" if character.isupper() and index else character.lower()
        for index, character in enumerate(last)
    )
