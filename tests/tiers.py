"""The test files that are slow: `make test` leaves them to `make test-all`.

A file belongs here if it takes long and the fast files reach almost all of the same branches: most start servers with
options of their own, or wait for deadlines. A new file is fast until it is listed. One slow test of a fast file is
marked `@pytest.mark.slow` there.

Tests by Hypothesis run in both tiers: `make test` with a quarter of the examples, `make test-all` with all of them.
"""

from __future__ import annotations

import os
from pathlib import Path

import hypothesis

ROOT = Path(__file__).parent

# Paths below tests/.
SLOW_FILES = frozenset(
    {
        # Hostile input that takes a server long.
        "attacks/test_bombs.py",
        "attacks/test_grammar_bombs.py",
        "attacks/test_isolated_code.py",
        "attacks/test_oversized.py",
        "attacks/test_region_escape.py",
        "attacks/test_token_guessing.py",
        # A server for each hostile caller, and processors that crash again and again.
        "end_to_end/test_quarantine.py",
        "end_to_end/test_slow_restore.py",
        "benchmarks/gpu/test_jobs.py",
        "benchmarks/gpu/test_runner.py",
        "benchmarks/test_bar.py",
        "benchmarks/test_fleet.py",
        "benchmarks/test_hostile.py",
        # Hooks and lost or stalled servers.
        "client/integrations/test_stalled_server.py",
        "client/integrations/test_tenants.py",
        "client/integrations/transformers/test_continuous.py",
        "client/integrations/transformers/test_generate.py",
        "client/integrations/vllm/test_admission.py",
        "client/session/transports/test_transport_conformance.py",
        # mypy, which reads torch.
        "client/test_typing.py",
        # torch.export, twice for each case.
        "programs/test_captured_results.py",
        "programs/lifting/test_lift.py",
        "examples/test_programs.py",
        # A worker, and a hundred examples of each law for each case.
        "testing/laws/test_planted_defects.py",
        # A pytest with a server for each case.
        "testing/test_pytest_plugin.py",
        # Tokenizers, many examples, and a rule that decodes each whole output.
        "builtin_processors/test_by_text.py",
        "client/tokenizers/test_tokenizer.py",
        # Workers of their own, with tokenizers.
        "server/executors/test_tokenizers.py",
        # A process for each case.
        "client/payload/test_dumps_dialects.py",
        # Models and generated text.
        "compatibility/test_example_engine.py",
        "compatibility/test_transformers.py",
        "examples/test_demo.py",
        "examples/test_engine.py",
        "examples/test_node.py",
        "server/dialects/test_dialect_conformance.py",
        # A browser.
        "play/test_browser.py",
        "server/dialects/transformers/test_own.py",
        "server/dialects/vllm/test_v2_model.py",
        # Servers with options of their own, and engines that come and go.
        "end_to_end/test_admin.py",
        "end_to_end/test_background_admission.py",
        "end_to_end/test_cuda_in_place.py",
        "end_to_end/test_cuda_scope.py",
        "end_to_end/test_dialects_transformers.py",
        "end_to_end/test_dialects_vllm.py",
        "end_to_end/test_dialects_vllm_v2.py",
        "end_to_end/test_grammar.py",
        "end_to_end/test_drain.py",
        "end_to_end/test_early_signals.py",
        "end_to_end/test_installed.py",
        "end_to_end/test_isolation.py",
        "end_to_end/test_isolation_admission.py",
        "end_to_end/test_isolation_loading.py",
        "end_to_end/test_limits.py",
        "end_to_end/test_listening.py",
        "end_to_end/test_local_transport.py",
        "end_to_end/test_message_limit.py",
        "end_to_end/test_metrics.py",
        "end_to_end/test_missing_layers.py",
        "end_to_end/test_nothing_is_lost.py",
        "end_to_end/test_processor_metrics.py",
        "end_to_end/test_reconnect.py",
        "end_to_end/test_serve.py",
        "end_to_end/test_several_servers.py",
        "end_to_end/test_signed.py",
        "end_to_end/test_tls.py",
        "end_to_end/test_tokens.py",
        "end_to_end/test_traces.py",
        "end_to_end/test_unfit_core.py",
        "end_to_end/test_validated_once.py",
        "client/session/connection/test_broken_connections.py",
        "storm/test_planted_defects.py",
        "storm/test_storm.py",
        "server/cli/test_printed.py",
        # An environment for each extra.
        "packaging/test_distributions.py",
        # A server for each kind of store, and all fixtures of a version.
        "stored/test_registry.py",
        "stored/test_writer.py",
    }
)


def is_slow(path: Path) -> bool:
    """Whether the file of a test is listed."""
    return path.is_relative_to(ROOT) and path.relative_to(ROOT).as_posix() in SLOW_FILES


def is_fleet(path: Path) -> bool:
    """Whether the file tests fleets: these tests need what `make test-fleet` installs."""
    return path.is_relative_to(ROOT / "fleet")


# Examples of a test that sets no number.
_FULL_EXAMPLES, _FAST_EXAMPLES, _MIN_EXAMPLES = 100, 25, 10


def load_profile(marks: str) -> None:
    """Set what Hypothesis does in a run with this expression of marks (`pytest -m`).

    HYPOTHESIS_EXAMPLES sets the number of examples of any run.
    """
    count = _FAST_EXAMPLES if "not slow" in marks else _FULL_EXAMPLES
    hypothesis.settings.register_profile(
        "logitport",
        max_examples=int(os.environ.get("HYPOTHESIS_EXAMPLES", count)),
        # The duration of an example depends on the load of the machine. Fixtures return the same objects for all.
        deadline=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.function_scoped_fixture],
        # Continuous integration uses fixed examples, so that its result depends only on the change.
        derandomize="CI" in os.environ,
    )
    hypothesis.settings.load_profile("logitport")


def examples(count: int) -> int:
    """Return the number of examples in this run, for a test that has this many in `make test-all`."""
    share = hypothesis.settings().max_examples / _FULL_EXAMPLES
    return min(count, max(_MIN_EXAMPLES, int(count * share)))
