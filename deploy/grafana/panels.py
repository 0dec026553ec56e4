"""The panels of the dashboard, in the order in which an operator on call needs them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# Selectors of the dashboard's variables: servers, and processors.
S = 'job=~"$job",instance=~"$instance"'
P = f'{S},processor=~"$processor"'
RATE = "[$__rate_interval]"
SERVER = "instance"
SERVER_LEGEND = "{{instance}}"

Color = Literal["green", "orange", "red"]


@dataclass(frozen=True)
class Panel:
    """One panel.

    Attributes:
        title, description: what it shows, and what to do about it.
        unit: Grafana's name of the unit.
        queries: expressions, each with the legend of its series.
        limits: from which value on a series is orange or red.
        base: the color of lower values.
        width: in 24ths of the dashboard.
        kind: a number, or a graph.
        decimals: digits after the point, of a number; None to let Grafana choose.
    """

    title: str
    description: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    limits: tuple[tuple[float, Color], ...] = ()
    base: Color = "green"
    width: int = 8
    kind: Literal["stat", "graph"] = "graph"
    decimals: int | None = None


@dataclass(frozen=True)
class Row:
    """A row of panels with a title."""

    title: str
    panels: tuple[Panel, ...]


def number(title: str, description: str, expr: str, *, legend: str = "", width: int = 4, **options: object) -> Panel:
    """A panel with numbers."""
    return Panel(title, description, "none", ((expr, legend),), width=width, kind="stat", decimals=0, **options)  # type: ignore[arg-type]


def quantile(q: float, histogram: str, by: str, selector: str = S) -> str:
    """The expression of a quantile of a histogram, by these labels."""
    return f"histogram_quantile({q}, sum by ({by}, le) (rate({histogram}_bucket{{{selector}}}{RATE})))"


def quantiles(histogram: str) -> tuple[tuple[str, str], ...]:
    """The median and the 99th percentile of a histogram, by server."""
    return tuple(
        (quantile(q, histogram, SERVER), f"{name} {SERVER_LEGEND}") for q, name in ((0.5, "p50"), (0.99, "p99"))
    )


def rate(counter: str, by: str, selector: str = S) -> str:
    """The expression of a counter's rate, by these labels."""
    return f"sum by ({by}) (rate({counter}{{{selector}}}{RATE}))"


def total(gauge: str, by: str = SERVER) -> str:
    """The expression of a gauge's sum, by these labels."""
    return f"sum by ({by}) ({gauge}{{{S}}})"


READY = Row(
    "Up and ready",
    (
        number(
            "Servers down",
            "Servers whose metrics cannot be read. Look at the process and its log. With several servers, sessions "
            "have moved to others.",
            f"sum(1 - up{{{S}}})",
            limits=((1, "red"),),
        ),
        number(
            "Servers not ready",
            "Servers that accept no sessions: they start, drain or end.",
            f"sum(1 - logitport_ready{{{S}}})",
            limits=((1, "orange"),),
        ),
        number(
            "Alerts",
            "Alerts of deploy/prometheus/alerts.yaml that fire.",
            'count(ALERTS{alertname=~"Logitport.*",alertstate="firing"}) or vector(0)',
            limits=((1, "red"),),
        ),
        number(
            "Processors in quarantine",
            "Processors that are not called any more, because they have ended too many workers. The log has the "
            "reason; `logitport processors unquarantine` lifts a quarantine.",
            f"sum(logitport_processors_quarantined{{{S}}})",
            limits=((1, "orange"),),
        ),
        number("Sessions", "Open sessions of all servers.", f"sum(logitport_sessions{{{S}}})"),
        number("Requests", "Requests that open sessions hold.", f"sum(logitport_requests{{{S}}})"),
    ),
)

ERRORS = Row(
    "Errors and refusals",
    (
        Panel(
            "Failed requests",
            "Requests that failed in a step, by processor and error. One processor has many: notify its author.",
            "reqps",
            (
                (
                    f"{rate('logitport_requests_failed_total', 'processor, code', P)} > 0",
                    "{{processor}} {{code}}",
                ),
            ),
            limits=((0.1, "red"),),
        ),
        Panel(
            "Refused requests",
            "Requests that sessions refused to add, by error and principal. The log has examples.",
            "reqps",
            ((f"{rate('logitport_requests_refused_total', 'code, principal')} > 0", "{{code}} {{principal}}"),),
            limits=((0.1, "orange"),),
        ),
        Panel(
            "Refused calls",
            "Calls that were refused before their message was read. NOT_AUTHENTICATED: an expired token, or an attack. "
            "LIMIT_EXCEEDED: a limit is too low.",
            "reqps",
            ((f"{rate('logitport_calls_refused_total', 'code, principal')} > 0", "{{code}} {{principal}}"),),
            limits=((0.1, "orange"),),
        ),
    ),
)

STEP_LIMITS: tuple[tuple[float, Color], ...] = ((0.05, "orange"), (0.25, "red"))

STEPS = Row(
    "Time of steps",
    (
        Panel(
            "Step, by server",
            "Time to compute a step. It adds to the time of each token: compare it with your engine's time of a step.",
            "s",
            quantiles("logitport_step_seconds"),
            limits=STEP_LIMITS,
        ),
        Panel(
            "p99 of a step, by part and transport",
            "edits: the part without logits. logits: the part that reads logits. apply: a call of Apply.",
            "s",
            ((quantile(0.99, "logitport_step_seconds", "part, transport"), "{{part}} {{transport}}"),),
            limits=STEP_LIMITS,
        ),
        Panel(
            "Time used by processors",
            "Seconds of steps in each processor's calls, for each second. Over 100 %: calls in several workers.",
            "percentunit",
            ((rate("logitport_processor_step_seconds_sum", "processor", P), "{{processor}}"),),
        ),
        Panel(
            "p99 of a step, by processor",
            "Time of a step in this processor's calls, with the wait for its worker. A slow one delays all requests of "
            "its steps: notify its author.",
            "s",
            ((quantile(0.99, "logitport_processor_step_seconds", "processor", P), "{{processor}}"),),
            limits=STEP_LIMITS,
            width=12,
        ),
        Panel(
            "p50 of a step, by processor",
            "The median of the same times.",
            "s",
            ((quantile(0.5, "logitport_processor_step_seconds", "processor", P), "{{processor}}"),),
            limits=STEP_LIMITS,
            width=12,
        ),
    ),
)

LOAD = Row(
    "Load",
    (
        Panel("Steps", "Steps answered.", "ops", ((rate("logitport_steps_total", SERVER), SERVER_LEGEND),)),
        Panel(
            "Rows, by processor",
            "Rows that each processor was applied to.",
            "rowsps",
            ((rate("logitport_rows_applied_total", "processor", P), "{{processor}}"),),
        ),
        Panel(
            "Steps that read logits, by memory",
            "inline: the logits travel with the frame, which takes longest. host and device: in shared memory.",
            "ops",
            ((rate("logitport_logits_read_total", "memory"), "{{memory}}"),),
        ),
        Panel("Sessions", "Open sessions.", "none", ((total("logitport_sessions"), SERVER_LEGEND),)),
        Panel("Requests", "Requests that open sessions hold.", "none", ((total("logitport_requests"), SERVER_LEGEND),)),
        Panel(
            "Admissions in the background",
            "Requests whose processors are being loaded. High for long: classes load slowly, or fail again and again.",
            "none",
            (
                (total("logitport_requests_pending"), f"pending {SERVER_LEGEND}"),
                (total("logitport_requests_waiting"), f"not begun {SERVER_LEGEND}"),
            ),
            limits=((64, "orange"),),
        ),
    ),
)

QUEUES = Row(
    "Waits",
    (
        Panel(
            "Before a step",
            "Time from the receipt of a step in its process until it is computed. If it grows, the process of one "
            "principal, or the host, has too much work: add servers.",
            "s",
            quantiles("logitport_step_queue_seconds"),
            limits=((0.005, "orange"), (0.05, "red")),
        ),
        Panel(
            "For busy workers",
            "Time until workers could begin the calls of a step. If it grows, engines share a trust domain with a slow "
            "processor: give it a tenant of its own.",
            "s",
            quantiles("logitport_worker_queue_seconds"),
            limits=((0.005, "orange"), (0.05, "red")),
        ),
        Panel(
            "Before an admission",
            "Time before the processors of a request begin to load.",
            "s",
            quantiles("logitport_admission_queue_seconds"),
            limits=((1, "orange"), (10, "red")),
        ),
        Panel(
            "Lag of the event loop",
            "How late the loop runs that parses calls and answers health checks. Engines wait for it at every step.",
            "s",
            quantiles("logitport_event_loop_lag_seconds"),
            limits=((0.025, "orange"), (0.1, "red")),
            width=12,
        ),
        Panel(
            "Calls that wait for a thread",
            "Above zero, a principal uses its whole share of the threads.",
            "none",
            ((total("logitport_calls_waiting"), SERVER_LEGEND),),
            limits=((1, "orange"),),
            width=12,
        ),
    ),
)

WORKERS = Row(
    "Workers",
    (
        Panel("Workers", "Processes of shipped processors.", "none", ((total("logitport_workers"), SERVER_LEGEND),)),
        Panel(
            "Memory of workers",
            "Resident memory, in which pages that workers share count once for each.",
            "bytes",
            ((total("logitport_workers_resident_memory_bytes"), SERVER_LEGEND),),
        ),
        Panel(
            "Lost workers",
            "Workers that were terminated because of a processor. The log has worker_lost events with the processor.",
            "none",
            ((f"sum by ({SERVER}) (increase(logitport_workers_lost_total{{{S}}}{RATE}))", SERVER_LEGEND),),
            limits=((1, "orange"),),
        ),
        Panel(
            "Processors in quarantine",
            "Processors that are not called any more.",
            "none",
            ((total("logitport_processors_quarantined"), SERVER_LEGEND),),
            limits=((1, "orange"),),
        ),
        Panel(
            "Workers and the GPU",
            "With a GPU: calls of workers with logits, by the memory they were passed in, and workers that should use "
            "the GPU and do not.",
            "ops",
            (
                (rate("logitport_worker_logits_total", "memory"), "{{memory}}"),
                (rate("logitport_worker_gpus_refused_total", SERVER), f"refused {SERVER_LEGEND}"),
            ),
            width=16,
        ),
    ),
)

REGISTRY = Row(
    "Registry",
    (
        Panel(
            "Registered processors",
            "Registrations of all principals.",
            "none",
            ((total("logitport_processors_registered"), SERVER_LEGEND),),
        ),
        Panel(
            "Store",
            "1 if the store of registered processors can be read, else 0. Without it, changes are refused.",
            "none",
            ((total("logitport_store_up"), SERVER_LEGEND),),
            limits=((1, "green"),),
            base="red",
        ),
        Panel(
            "Loads of classes",
            "From the cache, and those that unpickled. Many of the latter: engines ship classes of which each is new.",
            "ops",
            (
                (rate("logitport_loader_hits_total", SERVER), f"cached {SERVER_LEGEND}"),
                (rate("logitport_loader_misses_total", SERVER), f"unpickled {SERVER_LEGEND}"),
            ),
        ),
    ),
)

TRAFFIC = Row(
    "Bytes and replays",
    (
        Panel(
            "Received, by transport",
            "Messages; not logits in shared memory.",
            "Bps",
            ((rate("logitport_received_bytes_total", f"{SERVER}, transport"), f"{{{{transport}}}} {SERVER_LEGEND}"),),
        ),
        Panel(
            "Sent, by transport",
            "Messages; not logits in shared memory.",
            "Bps",
            ((rate("logitport_sent_bytes_total", f"{SERVER}, transport"), f"{{{{transport}}}} {SERVER_LEGEND}"),),
        ),
        Panel(
            "Replays",
            "Requests that were added with ids that had been generated before, and the ids of their histories: after a "
            "lost server, a move, or a difference of histories. Without any of these, look for connections that break.",
            "ops",
            (
                (rate("logitport_requests_replayed_total", SERVER), f"requests {SERVER_LEGEND}"),
                (rate("logitport_tokens_replayed_total", SERVER), f"tokens {SERVER_LEGEND}"),
            ),
        ),
    ),
)

PROCESSES = Row(
    "Processes and versions",
    (
        Panel(
            "Processes of principals",
            "They have the sessions. If the number falls and rises again without a change of the engines, processes "
            "end: the log has process_lost with the principal and the cause.",
            "none",
            (
                (total("logitport_processes"), SERVER_LEGEND),
                (rate("logitport_processes_lost_total", SERVER), f"lost {SERVER_LEGEND}"),
            ),
            width=6,
        ),
        Panel(
            "CPU",
            "CPU time of the front door, which relays frames of gRPC; without processes of principals and workers. At "
            "100 %, its event loop is busy: let engines of the same host use the local transport, or add servers.",
            "percentunit",
            ((rate("process_cpu_seconds_total", SERVER), SERVER_LEGEND),),
            limits=((0.7, "orange"), (0.9, "red")),
            width=6,
        ),
        Panel(
            "Memory",
            "Resident memory of the front door, without processes of principals and workers.",
            "bytes",
            ((total("process_resident_memory_bytes"), SERVER_LEGEND),),
            width=6,
        ),
        Panel(
            "Open files",
            "Part of the limit of open files. Near 100 %, connections and sessions are refused.",
            "percentunit",
            (
                (
                    f"max by ({SERVER}) (process_open_fds{{{S}}} / process_max_fds{{{S}}})",
                    SERVER_LEGEND,
                ),
            ),
            limits=((0.7, "orange"), (0.9, "red")),
            width=6,
        ),
        number(
            "Versions",
            "Number of servers of each version.",
            f"count by (version, core, python, torch) (logitport_build_info{{{S}}})",
            legend="logitport {{version}} ({{core}}), Python {{python}}, torch {{torch}}",
            width=24,
        ),
    ),
)

ROWS = (READY, ERRORS, STEPS, LOAD, QUEUES, WORKERS, REGISTRY, TRAFFIC, PROCESSES)
