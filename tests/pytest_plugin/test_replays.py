"""Replays of plans by the tests of somebody else: what passes, and everything that fails one."""

import re
from pathlib import Path

import pytest

from planfreeze.frozen_plans import FrozenPlan

from .conftest import TRY_IN_CHILD, USES_ALL

pytest_plugins = ["pytester"]


def test_a_replay_that_uses_every_program_passes_and_states_what_it_saw(
    run, built, pytester: pytest.Pytester, without_frameworks: str
) -> None:
    pytester.makepyfile(sitecustomize=without_frameworks)
    outcome = run(USES_ALL)
    assert outcome.status == 0, outcome.text
    root = built.report.plans[0].root
    assert f"toys-tp1-sm_90a@sha256:{root}: 3 launches of 2 of 2 programs" in outcome.text
    assert "4 hits in the store, 0 attempts to compile" in outcome.text  # two sessions of two programs
    assert re.search(r"^guard: .*triton awake.*cute awake", outcome.text, re.MULTILINE)


def test_a_plan_may_be_given_by_its_root_and_several_times(run, built) -> None:
    root = built.report.plans[0].root
    assert run(USES_ALL, plans=("toys-tp1-sm_90a", root, f"@sha256:{root}")).status == 0


def test_a_replay_without_launches_fails(run) -> None:
    outcome = run("def test_nothing(session): pass")
    assert (outcome.status, "1 passed" in outcome.text) == (1, True)
    nothing, unused = outcome.reasons()
    assert "nothing of toys-tp1-sm_90a was launched" in nothing
    assert "2 planned programs were never used" in unused


def test_a_replay_without_tests_fails(run) -> None:
    assert run("").status == 1


def test_a_replay_of_an_empty_plan_fails(run, built, tmp_path: Path) -> None:
    store = built.copy(tmp_path / "store")
    empty = FrozenPlan(model="empty", tp=1, arch="sm_90a", families=(), entries=())
    store.put_plan(empty.encode())
    store.set_ref(empty.name, empty.root)
    outcome = run("def test_nothing(): pass", plans=(empty.name,), store=store.path)
    assert outcome.status == pytest.ExitCode.USAGE_ERROR
    assert "empty-tp1-sm_90a" in outcome.text


def test_a_replay_of_a_plan_that_is_not_there_fails(run) -> None:
    outcome = run("def test_nothing(): pass", plans=("missing-tp1-sm_90a",))
    assert outcome.status == pytest.ExitCode.USAGE_ERROR
    assert "missing-tp1-sm_90a" in outcome.text


def test_a_replay_from_a_session_that_was_never_frozen_fails(run) -> None:
    outcome = run(
        "from conftest import *\ndef test_all(unfrozen): launch(unfrozen, AddPayload(block=64), CopyPayload())"
    )
    assert outcome.status == 1
    nothing, _, unfrozen = outcome.reasons()
    assert "nothing of toys-tp1-sm_90a was launched from a frozen session" in nothing
    assert "2 launches came from sessions that were never frozen" in unfrozen


def test_a_replay_lists_the_programs_that_were_never_used(run) -> None:
    outcome = run("from conftest import *\ndef test_one(session): launch(session, AddPayload(block=64))")
    assert outcome.status == 1
    (reason,) = outcome.reasons()
    assert reason.startswith("toys-tp1-sm_90a: 1 planned programs were never used: toys_copy(")


def test_a_launch_that_an_inner_cache_would_serve_is_an_attempt_and_no_use(
    run, run_plain, pytester: pytest.Pytester
) -> None:
    tests = "from conftest import *\ndef test_cached(): try_to_compile(64)"
    assert run_plain(tests).status == 0
    assert len(list((pytester.path / "triton").rglob("*.cubin"))) == 1
    outcome = run(tests)
    assert outcome.status == 1
    nothing, _, reached = outcome.reasons()
    assert "nothing of toys-tp1-sm_90a was launched" in nothing
    assert "a compiler was reached 1 times" in reached


def test_a_miss_is_listed_once_with_the_nearest_planned_program_and_what_differs(
    run, pytester: pytest.Pytester
) -> None:
    outcome = run(f"{USES_ALL}\ndef test_miss():\n    for _ in range(3): try_to_compile(128)\n")
    assert (outcome.status, "3 passed" in outcome.text) == (1, True)
    assert "a compiler was reached 3 times" in outcome.text
    (line,) = (line for line in outcome.text.splitlines() if "was asked to compile" in line)
    assert "(3 times)" in line and "conftest.py:" in line
    assert "toys_add(block=64" in line
    assert re.search(r"block:? 64 -> 128", line)
    assert list((pytester.path / "triton").rglob("*.cubin")) == []


def test_what_another_build_planned_is_named_with_the_field_that_differs(run) -> None:
    outcome = run(
        "from conftest import *\ndef test_other(session): launch(session, AddPayload(block=128), CopyPayload())"
    )
    assert outcome.status == 1
    assert "block: 64 -> 128" in outcome.text
    assert any("toys_add(block=64" in reason for reason in outcome.reasons()), outcome.text


def test_an_attempt_while_tests_are_imported_fails_a_replay(run) -> None:
    outcome = run(f"{USES_ALL}\ntry_to_compile()")
    assert (outcome.status, "2 passed" in outcome.text) == (1, True)
    assert "a compiler was reached 1 times" in outcome.text


def test_an_attempt_in_a_child_process_fails_a_replay(run) -> None:
    outcome = run(f"{USES_ALL}\ndef test_child():\n    {TRY_IN_CHILD.strip().replace(chr(10), '; ')}\n")
    assert (outcome.status, "3 passed" in outcome.text) == (1, True)
    assert "a compiler was reached 1 times" in outcome.text


def test_a_thousand_launches_try_to_compile_nothing(run) -> None:
    outcome = run(
        """
        from conftest import *
        def test_soak(session): launch(session, AddPayload(block=64), CopyPayload(), times=1000)
        """
    )
    assert outcome.status == 0, outcome.text
    assert "2000 launches of 2 of 2 programs" in outcome.text
    assert "0 attempts to compile" in outcome.text


def test_a_guard_that_was_taken_off_fails_a_replay(run) -> None:
    outcome = run(
        f"""{USES_ALL}
def test_sabotage():
    import triton
    from planfreeze.guard.watch import watch
    for guard in watch.armed: guard.release()
"""
    )
    assert (outcome.status, "3 passed" in outcome.text) == (1, True)
    assert any("asleep at the end" in reason for reason in outcome.reasons())


def test_a_guard_that_hears_nothing_fails_a_replay(run) -> None:
    outcome = run(
        f"""{USES_ALL}
def test_sabotage():
    import triton, planfreeze.guard.gates
    planfreeze.guard.gates.Gate.enter = lambda gate, arguments, options: gate.original(*arguments, **options)
    planfreeze.guard.gates.Gate.is_live = False
"""
    )
    assert outcome.status == 1
    assert any("asleep at the end" in reason and "triton" in reason for reason in outcome.reasons())


def test_a_guard_that_sleeps_in_children_fails_a_replay(run, pytester: pytest.Pytester, with_triton_alone: str) -> None:
    sleeper = """
import os
if "PLANFREEZE_GUARD" in os.environ:
    from planfreeze.guard.watch import watch
    watch.report = lambda attempt: None
"""
    pytester.makepyfile(sitecustomize=with_triton_alone + sleeper)
    outcome = run(USES_ALL)
    assert (outcome.status, "2 passed" in outcome.text) == (1, True)
    (reason,) = outcome.reasons()
    assert "did not stop a deliberate attempt" in reason


@pytest.mark.parametrize("is_compiling", [False, True])
def test_workers_add_up_in_uses_and_attempts(run, is_compiling: bool) -> None:
    pytest.importorskip("xdist")
    tests = f"{USES_ALL}\ndef test_third():\n    {'try_to_compile()' if is_compiling else 'pass'}\n"
    outcome = run(tests, "-n", "2")
    assert "3 passed" in outcome.text
    assert "3 launches of 2 of 2 programs" in outcome.text
    assert outcome.status == int(is_compiling), outcome.text
    assert f"{int(is_compiling)} attempts to compile" in outcome.text


def test_a_worker_that_dies_fails_a_replay(run) -> None:
    pytest.importorskip("xdist")
    outcome = run(
        f"{USES_ALL}\ndef test_death():\n    import os; os._exit(1)\n", "-n", "2", "--max-worker-restart", "0"
    )
    assert outcome.status != 0
    assert any("ended without telling" in reason for reason in outcome.reasons())


def test_listing_the_tests_judges_nothing(run) -> None:
    outcome = run(USES_ALL, "--collect-only")
    assert (outcome.status, "planfreeze replay" in outcome.text) == (0, False)
