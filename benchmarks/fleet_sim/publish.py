"""Publishes the committed results: the tables of docs/scaling.md, between their markers, and its picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.fleet_sim import capacity, costs
from benchmarks.fleet_sim.capacity import KIND, LONG, EngineKind
from benchmarks.fleet_sim.results import Simulated, load
from benchmarks.publish import markdown, write
from benchmarks.report import duration

if TYPE_CHECKING:
    from pathlib import Path

PICTURE = "docs/scaling.png"
_ROWS, _RATES = (1, 8, 64, 256), (10.0, 25.0, 50.0, 100.0)
_DEGREES_OF_USE = (0.6, 1.0)


def publish(root: Path) -> None:
    """Write the tables, and draw the picture."""
    from benchmarks.fleet_sim import plot  # needs matplotlib, which the texts do not

    measured, simulated = load()
    plot.draw(measured, simulated, root / PICTURE)
    write(texts(measured, simulated), root)


def texts(measured: costs.Measured, simulated: Simulated) -> dict[str, str]:
    """The published texts, each by the name of its markers."""
    return {
        "scaling-costs": _costs(measured),
        "scaling-formula": _formula(measured.costs),
        "scaling-capacity": _capacity(measured.costs),
        "scaling-check": _check(measured, simulated),
        "scaling-storms": _storms(measured, simulated),
        "scaling-fleets": _fleets(simulated),
        "scaling-losses": _losses(simulated),
        "scaling-choices": _choices(simulated),
        "scaling-ages": _ages(simulated),
        "scaling-directory": _directory(measured.costs),
        "scaling-memory": _memory(measured.costs),
    }


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 0.9995 else duration(seconds * 1e6)


def _bytes(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"


def _percent(share: float) -> str:
    return f"{share:.0%}"


def _ids(count: int) -> str:
    return f"{count:,}"


def _costs(measured: costs.Measured) -> str:
    it = measured.costs
    rows = (
        ("a step of many engines over gRPC", f"{_time(it.step)} + {_time(it.row_step)} a row"),
        ("a step of one engine without pauses, gRPC", f"{_time(it.step_alone)} + {_time(it.row_step_alone)} a row"),
        ("the same over the local transport", f"{_time(it.step_local)} + {_time(it.row_step_local)} a row"),
        ("opening a session, with its connection", _time(it.open)),
        ("replay of a request", f"{_time(it.replay_request)} + {_time(it.replay_id * 1000)} for each 1,000 ids"),
        ("replay in the engine", f"{_time(it.replay_id_client * 1000)} for each 1,000 ids"),
        (
            "shares of a core of steps and replays, while there are both",
            f"{_percent(it.steps_share)}, {_percent(it.replays_share)}",
        ),
        ("`GetLoad`, in the server and in the client", f"{_time(it.get_load)}, {_time(it.get_load_client)}"),
        ("keepalive ping of an idle connection", _time(it.keepalive)),
        ("memory of a session without requests", _bytes(it.session_bytes)),
        ("memory of a request", f"{_bytes(it.request_bytes)} + {_bytes(it.id_bytes * 1000)} for each 1,000 ids"),
        (
            "reading a list of 1,000 addresses: the directory, the client",
            f"{_time(it.read_directory)}, {_time(it.read_addresses)}",
        ),
        ("start of a server, by the clock", _time(it.start)),
    )
    where = (
        f"\nOn {measured.machine}. {measured.started[:10]}; other processes used {measured.others:.0%} of the "
        "processors' time.\n"
    )
    return markdown(("cost", "processor time or memory"), rows) + where


def _formula(it: costs.Costs) -> str:
    return (
        f"```\nengines of a core = utilization / (S * ({it.step * 1e6:.0f} µs + {it.row_step * 1e6:.1f} µs * R))\n```\n"
    )


def _capacity(it: costs.Costs) -> str:
    def cell(rows: int, rate: float) -> str:
        low, high = (
            capacity.engines_of_a_core(it, EngineKind(rows=rows, steps_a_second=rate), use) for use in _DEGREES_OF_USE
        )
        return f"{low:.0f} ({high:.0f})"

    head = ("rows of an engine", *(f"{rate:.0f} steps/s" for rate in _RATES))
    return markdown(head, ((str(rows), *(cell(rows, rate) for rate in _RATES)) for rows in _ROWS))


def _kind_of_check(measured: costs.Measured) -> EngineKind:
    return EngineKind(rows=measured.check_rows, steps_a_second=measured.check_steps_a_second)


def _check(measured: costs.Measured, simulated: Simulated) -> str:
    kind, it = _kind_of_check(measured), measured.costs
    of_one = capacity.engine_cores(it, kind)
    rows = (
        (
            str(level.engines),
            _percent(level.engines * of_one),
            _percent(level.busy),
            _percent(level.others),
            _time(level.step),
            f"{_time(level.p50)}, {_time(level.p99)}",
            f"{_time(model.p50)}, {_time(model.p99)}",
            _percent(level.achieved),
        )
        for level, model in zip(measured.levels, simulated.levels, strict=True)
    )
    head = (
        *("engines", "core, by the formula", "core, measured", "used by others", "processor time of a step"),
        *("p50, p99 measured", "p50, p99 simulated", "steps in time"),
    )
    period = 1 / kind.steps_a_second
    good = [level for level in measured.levels if level.p99 <= period and level.achieved >= IN_TIME]
    knee = max(good, key=lambda level: level.engines, default=measured.levels[0])
    last = measured.levels[-1]
    by_formula = capacity.engines_of_a_core(it, kind)
    by_steps = 1 / (kind.steps_a_second * last.step)
    verdict = (
        f"\nThe formula says that the core is full with {by_formula:.1f} engines. At the highest load the server used "
        f"{_time(last.step)} for a step instead of {_time(it.step_seconds(kind.rows))}: a core that it had alone would "
        f"be full with {by_steps:.1f}, a deviation of {by_steps / by_formula - 1:+.0%}. The largest load with a p99 "
        f"below one forward pass ({_time(period)}) was {knee.engines} engines, while others used {knee.others:.0%} of "
        f"the core: {knee.engines / by_formula - 1:+.0%}.\n"
    )
    return markdown(head, rows) + verdict


# The share of the steps that engines without waiting would make: less means that they wait for the server. The forward
# passes of the load last 2 % longer than the pause that it asks for.
IN_TIME = 0.95


def _storms(measured: costs.Measured, simulated: Simulated) -> str:
    rows = (
        (
            f"{real.engines} engines step, {real.replaying} replay 64 histories of {_ids(real.history)} ids",
            _time(real.before),
            f"{_time(real.during)}, {_time(model.during)}",
            f"{_time(real.seconds)}, {_time(model.seconds)}",
        )
        for real, model in zip(measured.storms, simulated.storms, strict=True)
    )
    head = ("one core", "step before", "step during: measured, simulated", "duration: measured, simulated")
    return markdown(head, rows)


def _fleets(simulated: Simulated) -> str:
    one = {
        loss.engines: loss for loss in simulated.losses if loss.case == "one server" and loss.history == KIND.history
    }
    rows = (
        (
            _ids(each.engines),
            _ids(each.servers),
            _percent(each.offered),
            f"{_percent(each.busy)}, {_percent(each.busiest)}",
            f"{each.fullest:.2f}",
            f"{_time(each.p50)}, {_time(each.p99)}",
            f"{_percent(each.offered * each.servers / (each.servers - 1))}, {_percent(one[each.engines].busiest)}",
        )
        for each in simulated.steady
    )
    head = (
        *("engines", "servers", "load, by the formula", "utilization: mean, busiest", "fullest ÷ mean"),
        *("step: p50, p99", "after the loss of a server: mean by the formula, busiest"),
    )
    return markdown(head, rows)


def _losses(simulated: Simulated) -> str:
    rows = (
        (
            f"{each.case}, {_ids(each.history)} ids",
            f"{_ids(each.engines)}, {_ids(each.servers)}",
            f"{_ids(each.moved)}, {each.most}",
            f"{_time(each.wait)}, {_time(each.longest)}",
            _time(each.others_p99) if each.others_p99 else "",
            _ids(each.load_calls),
            _ids(each.reads),
            _ids(each.given_up),
        )
        for each in simulated.losses
    )
    head = (
        *("what is lost", "engines, servers", "replays: all, most on a server", "wait: median, longest"),
        *("p99 of other steps meanwhile", "GetLoad calls", "reads of the list", "engines that give up"),
    )
    return markdown(head, rows)


def _choices(simulated: Simulated) -> str:
    rows = (
        (each.choice, f"{each.start:.2f}", f"{each.loss:.2f}", _time(each.wait), f"{each.restart:.2f}")
        for each in simulated.choices
    )
    head = ("choice", "after the start", "after a loss", "longest wait", "after a loss of all")
    return markdown(head, rows)


def _ages(simulated: Simulated) -> str:
    head = ("session ages since then", *(f"{each.ages:g}" for each in simulated.ages))
    rows = (
        ("fullest server ÷ mean", *(f"{each.fullest:.2f}" for each in simulated.ages)),
        ("emptiest server ÷ mean", *(f"{each.emptiest:.2f}" for each in simulated.ages)),
    )
    return markdown(head, rows)


def _directory(it: costs.Costs) -> str:
    lists = capacity.directories(it)
    rows = (
        ("servers", *(_ids(each.servers) for each in lists)),
        ("document", *(_bytes(each.document_bytes) for each in lists)),
        ("answer of DNS", *(_bytes(each.dns_bytes) for each in lists)),
        ("reads of the list a second", *(f"{each.reads:.2f}" for each in lists)),
        ("bytes of these documents a second", *(_bytes(each.reads * each.document_bytes) for each in lists)),
        ("`GetLoad` calls a second, for each server", *(f"{each.load_calls:.3f}" for each in lists)),
        ("reads of the list after the loss of a server", *(_ids(each.lost_reads) for each in lists)),
        ("`GetLoad` calls after it, for each other server", *(f"{each.lost_load_calls:.2f}" for each in lists)),
        ("polls of the common registry a second", *(_ids(round(each.polls)) for each in lists)),
        ("most connections of a server", *(_ids(each.engines) for each in lists)),
        (
            "pings of idle connections, at most: share of a core",
            *(f"{each.engines / capacity.KEEPALIVE_SECONDS * it.keepalive:.1%}" for each in lists),
        ),
    )
    return markdown(("engines of one list", *(_ids(each.engines) for each in lists)), rows)


def _memory(it: costs.Costs) -> str:
    engines = capacity.engines_of_a_core(it, KIND, capacity.AFTER_LOSS)
    rows = (
        (
            f"{engines:.0f} engines of 64 requests with {_ids(kind.history)} ids",
            _bytes(capacity.memory(it, kind, engines)),
        )
        for kind in (KIND, LONG)
    )
    return markdown(("one server of a cell of 1,000, after a loss", "memory beside its own"), rows)
