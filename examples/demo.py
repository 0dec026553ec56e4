"""Generates with a real model through the service: the same prompts without and with each of four processors.

Starts its own server, and stops it. The model has random weights, so that nothing is downloaded, and the vocabulary of
Qwen3, so that its real token ids apply. The exit status is 1 if the effect of a processor is missing. `make demo` runs
it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from transformers import Qwen3Config, Qwen3ForCausalLM

from logitport import Client, CustomLogitProcessor, LogitportError
from logitport.integrations.transformers import RemoteLogitsProcessor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

VOCAB_SIZE = 151_936
NAMES = {198: "\\n", 151_667: "<think>", 151_668: "</think>"}  # of Qwen3
THINK, END_OF_THINKING = 151_667, 151_668
PROMPTS, PROMPT_LENGTH, NEW_IDS = 4, 16, 48
ALL_IDS = PROMPTS * NEW_IDS
BUDGET, NGRAM = 16, 2
SHOWN = 8
START_SECONDS = 60.0

Ids = list[int]


def is_green(previous: int, vocab_size: int) -> torch.Tensor:
    """The half of the vocabulary that may follow `previous` in a watermarked text, bool[vocab_size]."""
    return torch.rand(vocab_size, generator=torch.Generator().manual_seed(previous)) < 0.5


class Watermark(CustomLogitProcessor):
    """Prefers green ids: their share identifies the text (Kirchenbauer et al., 2023, arXiv:2301.10226).

    The server does not have this class. The client sends it together with `is_green` and the import of torch.
    """

    def __call__(self, logits: torch.Tensor, custom_param_list: list[dict[str, Any]] | None = None) -> torch.Tensor:
        for row, params in zip(logits, custom_param_list or [], strict=True):
            request = params["__req__"]
            previous = (request.output_ids or request.origin_input_ids)[-1]
            row.add_(is_green(previous, len(row)).to(row), alpha=params["delta"])
        return logits


@dataclass(frozen=True)
class Experiment:
    """A processor, and the ids to count in the output.

    Attributes:
        processor, params: the entry of the chain.
        counted: description of the counted ids.
        count: takes one row, prompt and output; returns for each output id whether it is counted.
        style: style of counted ids.
        expected: takes the counts of all rows without and with the processor; returns whether its effect is there.
    """

    name: str
    processor: Any
    params: dict[str, Any]
    counted: str
    count: Callable[[Ids], list[bool]]
    style: str
    expected: Callable[[int, int], bool]


def thinking(ids: Ids) -> list[bool]:
    """Count ids up to </think>; the prompt ends in <think>."""
    output = ids[PROMPT_LENGTH:]
    return [END_OF_THINKING not in output[: place + 1] for place in range(len(output))]


def repeated(ids: Ids) -> list[bool]:
    """Count ids that complete a repeated n-gram."""
    ngrams = [tuple(ids[end - NGRAM : end]) for end in range(NGRAM, len(ids) + 1)]
    return [ngram in ngrams[:place] for place, ngram in enumerate(ngrams)][PROMPT_LENGTH - NGRAM + 1 :]


def green(ids: Ids) -> list[bool]:
    """Count ids that are green after the previous id."""
    return [bool(is_green(ids[place - 1], VOCAB_SIZE)[ids[place]]) for place in range(PROMPT_LENGTH, len(ids))]


def experiments(client: Client, baseline: list[Ids]) -> list[Experiment]:
    """Create the experiments; the banned ids are those that the model samples most often."""
    sampled = Counter(token_id for ids in baseline for token_id in ids[PROMPT_LENGTH:])
    banned = [token_id for token_id, _ in sampled.most_common(8)]
    watermark = client.register(Watermark, name="demo/watermark")
    return [
        Experiment(
            "disallowed_tokens",
            "disallowed_tokens",
            {"token_ids": banned},
            "banned ids: the 8 that the model samples most often",
            lambda ids: [token_id in banned for token_id in ids[PROMPT_LENGTH:]],
            "bold red",
            lambda without, with_it: with_it == 0 < without,
        ),
        Experiment(
            "thinking_budget",
            "thinking_budget",
            {"thinking_budget": BUDGET, "preset": "qwen3"},
            f"thinking ids: after {BUDGET}, a newline and </think> are forced",
            thinking,
            "bold yellow",
            lambda without, with_it: (without, with_it) == (ALL_IDS, PROMPTS * (BUDGET + 1)),
        ),
        Experiment(
            "no_repeat_ngram",
            "no_repeat_ngram",
            {"ngram_size": NGRAM},
            f"ids that repeat an n-gram of {NGRAM}",
            repeated,
            "bold red",
            lambda without, with_it: with_it == 0 < without,
        ),
        Experiment(
            "Watermark",
            watermark,
            {"delta": 4.0},
            f"green ids: a logits-reading class of this script, shipped now ({watermark.size_bytes:,} bytes)",
            green,
            "bold green",
            lambda without, with_it: without < 0.7 * ALL_IDS and with_it > 0.9 * ALL_IDS,
        ),
    ]


@contextmanager
def serving() -> Iterator[str]:
    """Run a server while the context lasts; yields its HOST:PORT."""
    command = [str(Path(sys.executable).with_name("logitport")), "serve", "--listen", "127.0.0.1:0"]
    command += ["--isolation", "none"]  # the shipped class is this script's own, and the machine may lack a sandbox
    with (
        tempfile.TemporaryFile("w+") as log,
        subprocess.Popen(
            [*command, "--enable-custom-logit-processor"], stdout=subprocess.PIPE, stderr=log, text=True
        ) as server,
    ):
        start_timer = threading.Timer(START_SECONDS, server.kill)
        try:
            start_timer.start()
            ready = server.stdout.readline() if server.stdout else ""
            if not ready:
                log.seek(0)
                raise RuntimeError(f"the server did not start: {log.read().strip()}")
            start_timer.cancel()
            yield ready.split()[-1]
        finally:
            start_timer.cancel()
            server.terminate()
            server.wait()  # after Ctrl-C, Popen.__exit__ waits only briefly


def build_model() -> Qwen3ForCausalLM:
    """Create a small Qwen3 with random weights that prefer a few ids, like trained weights."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        initializer_range=0.05,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = Qwen3ForCausalLM(config).eval()
    with torch.no_grad():
        model.lm_head.weight[torch.randperm(VOCAB_SIZE)[60:]] *= 0.3
    return model


def generate(model: Qwen3ForCausalLM, prompts: torch.Tensor, *processors: RemoteLogitsProcessor) -> list[Ids]:
    """Generate greedily. Returns prompt and output of each row."""
    output: list[Ids] = model.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        max_new_tokens=NEW_IDS,
        do_sample=False,
        logits_processor=list(processors),
    ).tolist()
    return output


def show(
    console: Console,
    experiment: Experiment,
    without: list[Ids],
    with_it: list[Ids],
    remote: RemoteLogitsProcessor,
    step_ms: float,
) -> bool:
    """Print a panel about the prompt that changes first. Returns whether the effect is there."""
    place, row = min((first_change(*pair), row) for row, pair in enumerate(zip(without, with_it, strict=True)))
    first_shown = max(0, min(place - 2, NEW_IDS - SHOWN))
    grid = Table.grid(padding=(0, 2, 0, 0))
    counts = []
    for label, rows in (("without", without), ("with", with_it)):
        counted = [experiment.count(ids) for ids in rows]
        counts.append(sum(map(sum, counted)))
        ids = Text(overflow="crop", no_wrap=True)
        for at in range(first_shown, first_shown + SHOWN):
            token_id = rows[row][PROMPT_LENGTH + at]
            ids.append(f"{NAMES.get(token_id, token_id):>8}", experiment.style if counted[row][at] else "dim")
        grid.add_row(f"{label:7}", f"[{experiment.style}]{counts[-1]:3}[/] of {ALL_IDS}", ids)
    rows_applied = sum(remote.rows_applied.values())
    added_ms = 1e3 * remote.seconds / remote.steps
    effective = experiment.expected(*counts) and rows_applied == ALL_IDS
    panel = Panel(
        grid,
        title=f"[bold]{experiment.name}[/]  [{experiment.style}]{experiment.counted}[/]",
        title_align="left",
        subtitle=f"changes from id {place + 1} · {rows_applied} rows applied · "
        f"[bold]+{added_ms:.1f} ms[/] per step (+{100 * added_ms / step_ms:.0f} %)",
        subtitle_align="right",
        border_style="cyan" if effective else "red",
    )
    console.print(panel)
    return effective


def first_change(without: Ids, with_it: Ids) -> int:
    """The first index of the output at which two rows differ; its length if there is none."""
    pairs = zip(without[PROMPT_LENGTH:], with_it[PROMPT_LENGTH:], strict=True)
    return next((place for place, (one, other) in enumerate(pairs) if one != other), NEW_IDS)


def main() -> int:
    """Run the demo. Returns the exit status."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    transformers.logging.set_verbosity_error()
    console = Console(width=None if sys.stdout.isatty() else 100, highlight=False)
    with serving() as target, Client(target) as client:
        model = build_model()
        prompts = torch.randint(1_000, THINK, (PROMPTS, PROMPT_LENGTH))
        prompts[:, -1] = THINK
        generate(model, prompts[:, :1])  # warms up
        began = time.perf_counter()
        baseline = generate(model, prompts)
        step_ms = 1e3 * (time.perf_counter() - began) / NEW_IDS
        console.print(
            f"[bold]logitport[/] serves at {target}. Qwen3 with random weights and its vocabulary of {VOCAB_SIZE:,} "
            f"ids generates {NEW_IDS} ids for each of {PROMPTS} prompts, which end in <think>: {step_ms:.1f} ms per "
            "step without a processor. Each panel shows token ids of the prompt that changes first."
        )
        missing = []
        for experiment in experiments(client, baseline):
            remote = RemoteLogitsProcessor([(experiment.processor, experiment.params)], client=client)
            output = generate(model, prompts, remote)
            if not show(console, experiment, baseline, output, remote, step_ms):
                missing.append(experiment.name)
    if missing:
        console.print(f"[bold red]failed:[/] no effect of {', '.join(missing)}")
        return 1
    console.print("[bold green]All four processors had the expected effect.[/] The server has stopped.")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except (LogitportError, RuntimeError) as error:
        sys.exit(f"demo: {error}")
