"""Guards: modes, nesting, counts, and what an armed process may do."""

import copy
import pickle
import re
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from planfreeze.errors import CompilationForbidden, PlanfreezeError, UnknownMode, UnknownRoad
from planfreeze.guard import Attempt, Guard, installed_roads, no_compilation, prove, road_names, self_test
from planfreeze.guard.watch import ROADS, watch

ATTEMPT = Attempt(road="triton", kernel="m.k", signature="x: *fp32", location="app.py:12")


@pytest.fixture(autouse=True)
def released() -> Iterator[None]:
    """No guard is armed before or after a test of this file."""
    assert not watch.armed
    yield
    assert not watch.armed and watch.finder not in sys.meta_path


def test_raise_refuses_and_counts() -> None:
    with no_compilation() as guard, pytest.raises(CompilationForbidden) as caught:
        watch.report(ATTEMPT)
    assert guard.attempts == {"triton": 1} and guard.attempts["cute"] == 0
    assert caught.value.attempt == ATTEMPT and caught.value.exit_code == 5
    assert isinstance(caught.value, PlanfreezeError)
    assert str(caught.value) == (
        "triton was asked to compile m.k(x: *fp32) at app.py:12. Nothing may be compiled while a guard is armed. "
        "Run: planfreeze build, with a plan that holds this program; planfreeze record makes one of a run"
    )


@pytest.mark.parametrize("action", ["compile", "build", "load"])
def test_no_plan_is_advised_for_what_no_plan_holds(action: str) -> None:
    for road in ("spawn", "cpp-extension", "ptx"):
        message = str(CompilationForbidden(ATTEMPT._replace(road=road, action=action)))
        assert message.endswith("Run: this before a guard is armed; no plan holds what comes of it")


def test_an_explanation_that_names_the_command_has_the_last_word() -> None:
    with (
        no_compilation(explain=lambda attempt: "Nearest: m.k2. Run: planfreeze build --model ds41"),
        pytest.raises(CompilationForbidden, match=r"Nearest: m.k2. Run: planfreeze build --model ds41$"),
    ):
        watch.report(ATTEMPT)


def test_warn_warns_at_the_users_line_every_time() -> None:
    with warnings.catch_warnings(record=True) as caught, no_compilation("warn") as guard:
        warnings.simplefilter("always")
        watch.report(ATTEMPT)
        watch.report(ATTEMPT)
    assert [(w.filename, w.lineno, w.category) for w in caught] == [("app.py", 12, RuntimeWarning)] * 2
    assert guard.attempts == {"triton": 2}


def test_count_is_silent_and_off_watches_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with no_compilation("count") as counting:
            watch.report(ATTEMPT)
        with no_compilation("off") as off:
            assert not watch.armed and not off.is_armed
    assert counting.attempts == {"triton": 1} and not off.attempts


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(UnknownMode, match="'loud' is not a mode"):
        Guard(mode="loud")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("outer_mode", "inner_mode", "refused_by"),
    [("raise", "raise", "inner"), ("raise", "count", "outer"), ("count", "raise", "inner"), ("count", "count", None)],
)
def test_nested_guards_all_count_and_the_innermost_refuses(
    outer_mode: str, inner_mode: str, refused_by: str | None
) -> None:
    outer = Guard(mode=outer_mode, explain=lambda attempt: "By outer.")  # type: ignore[arg-type]
    inner = Guard(mode=inner_mode, explain=lambda attempt: "By inner.")  # type: ignore[arg-type]
    outer.arm()
    inner.arm()
    try:
        if refused_by is None:
            watch.report(ATTEMPT)
        else:
            with pytest.raises(CompilationForbidden, match=f"By {refused_by}"):
                watch.report(ATTEMPT)
    finally:
        outer.release()
        inner.release()
    assert outer.attempts == inner.attempts == {"triton": 1}


def test_arm_and_release_are_idempotent_and_any_order_works() -> None:
    first, second = Guard(), Guard(mode="count")
    first.arm()
    first.arm()
    second.arm()
    first.release()
    first.release()
    watch.report(ATTEMPT)
    assert second.attempts == {"triton": 1} and not first.attempts
    second.release()
    first.arm()
    with pytest.raises(CompilationForbidden):
        watch.report(ATTEMPT)
    first.release()


def test_counts_are_read_only_and_exact_across_threads() -> None:
    with no_compilation("count") as guard:
        threads = [threading.Thread(target=lambda: [watch.report(ATTEMPT) for _ in range(500)]) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert guard.attempts == {"triton": 4000}
    with pytest.raises(TypeError):
        guard.attempts["triton"] = 0  # type: ignore[index]


def test_the_guard_is_released_when_the_block_raises() -> None:
    with pytest.raises(KeyError), no_compilation():
        raise KeyError
    assert not watch.armed


def test_an_error_survives_pickling() -> None:
    error = CompilationForbidden(ATTEMPT, "Nearest: m.k2.")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_proof_of_an_unknown_road_is_refused() -> None:
    with pytest.raises(UnknownRoad, match="coal is not a road"):
        prove("coal")


def test_a_proof_without_a_guard_is_false() -> None:
    assert all(proof in (False, "not installed") for proof in self_test().values())
    assert self_test().keys() == {road.name for road in ROADS}


def test_arming_and_releasing_imports_no_compiler_and_no_road_to_one_that_is_not_there(run_script) -> None:
    checks = """
    from planfreeze.guard import no_compilation, road_names
    before = set(sys.modules)
    with no_compilation():
        pass
    new = {name for name in sys.modules.keys() - before if name.startswith("planfreeze.guard")}
    # A child that is forked in the midst of an import waits for it without end.
    assert not new, new
    roads = {"planfreeze.guard." + road.replace("-", "_") for road in road_names()}
    assert roads & sys.modules.keys() == {"planfreeze.guard.spawn"}
    loaded = {name.partition(".")[0] for name in sys.modules}
    assert not loaded & {"triton", "cutlass", "torch", "numpy"}, loaded
    """
    run_script(checks)


def test_the_command_writes_a_proof_per_road(run_script) -> None:
    checks = """
    import json, subprocess
    from planfreeze.guard.watch import ROADS
    done = subprocess.run([sys.executable, "-m", "planfreeze.guard"], capture_output=True, text=True, check=True)
    proven = json.loads(done.stdout)
    assert proven.keys() == {road.name for road in ROADS}
    assert set(proven.values()) <= {"awake", "not installed"}, proven
    assert traces()[0] == 0
    """
    run_script(checks)


def test_no_road_is_live_before_its_compiler_is_loaded() -> None:
    assert installed_roads() == ()


def test_every_road_stands_in_the_documents() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "guard.md").read_text()
    described = re.findall(r"^\| ([a-z0-9-]+) \| .+ \| .+ \|$", page, re.MULTILINE)
    assert set(road_names()) == set(described) - {"road"}


def test_allowed_roads_are_neither_counted_nor_answered_and_must_exist() -> None:
    load = Attempt(road="triton-load", kernel="m.k", location="app.py:12", action="load")
    with no_compilation() as guard:
        watch.report(load)
        assert not guard.attempts
        with (
            no_compilation(allowed=frozenset({"cute"})) as inner,
            pytest.raises(CompilationForbidden, match="Nothing may be loaded while a guard is armed"),
        ):
            watch.report(load)
        assert inner.attempts == {"triton-load": 1} and not guard.attempts
    with pytest.raises(UnknownRoad, match="coal is not a road"):
        Guard(allowed=frozenset({"coal"}))


def test_a_signature_is_spelled_from_facts_unless_it_is_given() -> None:
    facts = (("x", "*fp32 (divisible by 16)"), ("", "2"), ("BLOCK", "64"))
    assert Attempt(road="r", kernel="k", location="l:1", facts=facts).signature == (
        "x: *fp32 (divisible by 16), 2, BLOCK: 64"
    )
    assert Attempt(road="r", kernel="k", location="l:1", facts=facts, signature="given").signature == "given"
    assert Attempt(road="r", kernel="k", location="l:1").signature == ""


def test_an_attempt_is_a_value_that_others_can_be_sent() -> None:
    given = Attempt(road="r", kernel="k", location="l:1", facts=(("x", "*fp32"),), action="load")
    assert copy.copy(given) == pickle.loads(pickle.dumps(given)) == given != given._replace(action="build")
    assert {given: 1}[Attempt(road="r", kernel="k", location="l:1", facts=(("x", "*fp32"),), action="load")] == 1


def test_each_different_attempt_is_listed_once_with_its_count() -> None:
    other = Attempt(road="triton", kernel="m.k", facts=(("BLOCK", "64"),), location="app.py:12")
    with no_compilation("count") as guard:
        for attempt in (ATTEMPT, other, ATTEMPT):
            watch.report(attempt)
        before = guard.seen
        watch.report(other)
    assert before == {ATTEMPT: 2, other: 1} and guard.seen == {ATTEMPT: 2, other: 2}


def test_a_guard_is_made_and_armed_in_a_child_forked_while_another_thread_does_so(run_script) -> None:
    checks = """
    import os
    import signal
    import sys
    import threading
    from planfreeze.guard import no_compilation

    forking, forked = threading.Event(), threading.Event()

    def stop(event, arguments):
        # A thread that executes a module of planfreeze waits here, until the other one has forked.
        code = arguments[0] if event == "exec" else None
        if getattr(code, "co_name", "") == "<module>" and threading.current_thread() is not threading.main_thread():
            if "/planfreeze/" in code.co_filename and not code.co_filename.endswith("gates.py"):
                forking.set()
                forked.wait()

    def arm():
        with no_compilation():
            pass
        forking.set()

    sys.addaudithook(stop)
    thread = threading.Thread(target=arm)
    thread.start()
    forking.wait()
    pid = os.fork()
    if not pid:
        signal.alarm(20)
        with no_compilation():
            os._exit(0)
    forked.set()
    thread.join()
    assert os.waitpid(pid, 0)[1] == 0
    """
    run_script(checks)
