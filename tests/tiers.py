"""The fast tests, which `make test` runs in two minutes, and the slow ones, which it leaves to `make test-slow`.

A test file is fast if its tests take less than two seconds of processor time, with all processes that they start. A
file that takes more is listed here; one expensive test of a cheap file is marked `@pytest.mark.slow` there. What takes
more starts a server with options of its own, captures programs, runs a model, a browser or a compiler, starts the
interpreter again for each case, or waits for deadlines. `make test` ends with the fast files that exceed the limit
(`tests/processor_time.py`). Each area keeps a fast test from one end to the other (`tests/test_tiers.py`).

Tests by Hypothesis run in both: `make test` takes a tenth of the examples, `make test-slow` and `make test-all` all.
"""

from __future__ import annotations

import os
from pathlib import Path, PurePath

import hypothesis

ROOT = Path(__file__).parent

# Selects the fast tests (`pytest -m`), as `make test` does.
FAST = "not slow and not peers and not engines and not fleet and not machine"

# Paths below tests/.
SLOW = frozenset(
    {
        # A server whose bystander is checked after each attack.
        "attacks",
        # A build of liblogitport, and servers that are killed and stopped.
        "core/library",
        # A server for each hostile caller, and processors that crash again and again.
        "end_to_end/test_quarantine.py",
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
        "client/integrations/transformers/test_generate_calls.py",
        "client/integrations/vllm/test_request_trials.py",
        "client/session/transports/test_transport_conformance.py",
        # A compiler of kernels.
        "client/ops/test_triton_compiles.py",
        # mypy, which reads torch.
        "client/test_typing.py",
        # Derivatives by finite differences, captured programs, and a model that generates.
        "client/training/test_engine_sampling.py",
        "client/training/test_log_probs.py",
        "client/training/test_program_run.py",
        "client/training/test_sampled_in_transformers.py",
        # torch.export, twice for each case.
        "client/shipping/test_present_state.py",
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
        # Commands that import torch.
        "docs/test_recipes_page.py",
        # Workers and zygotes of their own; some with tokenizers.
        "server/executors/calls/test_admission_runner.py",
        "server/executors/calls/test_worker_calls.py",
        "server/executors/test_tokenizers.py",
        "server/principal_process/workers/test_lent_executor.py",
        "server/principal_process/workers/test_lent_slots.py",
        # A process for each case.
        "client/payload/test_dumps_dialects.py",
        # Models and generated text.
        "compatibility/test_transformers.py",
        # A compiler of each language, servers that stop, and npm.
        "conformance",
        "examples/test_demo.py",
        "examples/test_engine.py",
        "examples/test_node.py",
        "server/dialects/test_dialect_conformance.py",
        # Workers, zygotes, supervisors or forkers that start, end or are killed in each test.
        "sandbox/test_forker.py",
        "sandbox/test_users.py",
        "server/executors/calls/test_remote_dialect.py",
        "server/executors/test_bad_input.py",
        "server/executors/test_workers.py",
        "server/front_door/test_forked_workers.py",
        "server/front_door/test_memory_shares.py",
        "server/front_door/test_reports.py",
        "server/front_door/test_session_zygote.py",
        "server/processes/test_supervisor.py",
        "server/stubs/test_stubs.py",
        "server/worker/test_malloc.py",
        "server/worker/test_temporary_folder.py",
        # Programs captured from classes that are changed, line by line.
        "client/shipping/test_suspect_code.py",
        # A model of its own in each test.
        "docs/test_reasoning_page.py",
        # A browser.
        "examples/test_picture.py",
        "play/test_browser.py",
        "server/dialects/transformers/test_own.py",
        "server/dialects/vllm/test_v2_model.py",
        # Servers with options of their own, and engines that come and go.
        "compatibility/test_interruptions.py",
        "end_to_end/test_admin.py",
        "end_to_end/test_background_admission.py",
        "end_to_end/test_checked_elsewhere.py",
        "end_to_end/test_cuda_in_place.py",
        "end_to_end/test_cuda_scope.py",
        "end_to_end/test_dialects_transformers.py",
        "end_to_end/test_dialects_vllm.py",
        "end_to_end/test_draft_trees.py",
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
        "end_to_end/test_only_denies.py",
        "end_to_end/test_output.py",
        "end_to_end/test_principal_memory.py",
        "end_to_end/test_principal_processes.py",
        "end_to_end/test_reconnect.py",
        "end_to_end/test_relayed_bytes.py",
        "end_to_end/test_serve.py",
        "end_to_end/test_several_servers.py",
        "end_to_end/test_signed.py",
        "end_to_end/test_third_party_grammars.py",
        "end_to_end/test_tls.py",
        "end_to_end/test_tokens.py",
        "end_to_end/test_traces.py",
        "end_to_end/test_validated_once.py",
        "end_to_end/test_without_torch.py",
        "end_to_end/test_worker_python.py",
        "client/session/connection/test_broken_connections.py",
        "storm/test_planted_defects.py",
        "storm/test_storm.py",
        "server/cli/test_color.py",
        "server/cli/test_printed.py",
        # An environment for each extra, and what pip resolves.
        "packaging",
        # A server for each kind of store, and all fixtures of a version.
        "stored/test_registry.py",
        "stored/test_writer.py",
    }
)


# Folders below tests/ of which each needs what a target of make installs. Their tests have a mark of the same name.
MARKED_FOLDERS = ("engines", "fleet", "machine", "peers")


def marks_of(path: Path) -> list[str]:
    """Return the marks that all tests of a file, or of a folder, have."""
    if not path.is_relative_to(ROOT):
        return []
    name = path.relative_to(ROOT).as_posix()
    marks = [folder for folder in MARKED_FOLDERS if name.split("/")[0] == folder]
    return [*marks, "slow"] if SLOW & {name, *(folder.as_posix() for folder in PurePath(name).parents)} else marks


def is_left_out(path: Path, expression: str) -> bool:
    """Whether an expression of marks (`pytest -m`) selects no test of this file or folder."""
    return any(f"not {mark}" in expression for mark in marks_of(path))


# Examples of a test that sets no number.
_FULL_EXAMPLES, _FAST_EXAMPLES, _MIN_EXAMPLES = 100, 10, 5


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
