"""The pytest plugin, in runs of pytest of their own: guards change what a whole process may do."""

import os
import re
import tomllib
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from planfreeze.frozen_plans import FrozenPlan

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[1]
# An installation that was made before the plugin came has no entry point for it.
IS_INSTALLED = any(found.value == "planfreeze.pytest_plugin" for found in entry_points(group="pytest11"))
OPTIONS = () if IS_INSTALLED else ("-p", "planfreeze.pytest_plugin")

# A device that is none: it takes every program and answers every launch with success.
CONFTEST = """
from types import SimpleNamespace
import pytest
import planfreeze.sessions
from planfreeze.cache.store import Store
from planfreeze.sessions import Session
from toys.families import AddPayload, CopyPayload

OK = SimpleNamespace(name="CUDA_SUCCESS", value=0)

class Driver:
    CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=0)
    def __getattr__(self, name):
        return lambda *arguments: (OK,) if name == "cuLaunchKernel" else (OK, 1)

class Tensor:
    dtype, device = "i32", "nowhere"
    def is_contiguous(self): return True
    def data_ptr(self): return 4096
    def numel(self): return 4096

class Device:
    ordinal, name, capability, sm_count, torch_device, dtypes = 0, "none", (9, 0), 1, "nowhere", {"i32": "i32"}
    driver, torch = Driver(), SimpleNamespace(Tensor=Tensor)
    def __init__(self, ordinal): pass
    def _current_stream(self, ordinal): return 0
    def check(self, what, outcome): return outcome[1]
    def run_in_context(self, call): return call()

planfreeze.sessions.Device = Device

def launch(session, *payloads, times=1):
    for payload in payloads:
        bound = session.program(payload).bind(Tensor(), Tensor(), 128)
        for _ in range(times):
            bound.launch()

def try_to_compile(block=128):
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import ASTSource, compile
    from toys.add_triton import add_kernel
    signature = {"source": "*i32", "out": "*i32", "count": "i32", "block": "constexpr"}
    source = ASTSource(fn=add_kernel, signature=signature, constexprs={"block": block})
    try:
        compile(source, target=GPUTarget("cuda", 90, 32))
    except Exception:
        pass

@pytest.fixture
def unfrozen():
    with Session(("toys-tp1-sm_90a",), STORE, device=None, build=False, is_trusted=False) as made:
        yield made

@pytest.fixture
def session(unfrozen):
    return unfrozen.freeze()
"""
USES_ALL = """
from conftest import *
def test_add(session): launch(session, AddPayload(block=64), times=2)
def test_copy(session): launch(session, CopyPayload())
"""
# Starts a Python process that tries to compile.
TRY_IN_CHILD = """
import subprocess, sys
subprocess.run([sys.executable, "-c", "from conftest import try_to_compile; try_to_compile()"], check=True)
"""


class Outcome:
    """What a run of pytest printed and how it ended."""

    def __init__(self, status: int, text: str) -> None:
        self.status, self.text = status, text

    def reasons(self) -> list[str]:
        return re.findall(r"^FAILED: (.*)$", self.text, re.MULTILINE)


@pytest.fixture
def run(
    pytester: pytest.Pytester, toys, built, with_triton_alone: str, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Outcome]:
    """Run pytest over a test module beside a conftest with the stand-in device."""
    pytester.makepyfile(sitecustomize=with_triton_alone)

    def start(tests: str, *options: str, plans: tuple[str, ...] = ("toys-tp1-sm_90a",), store: Path | None = None):
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (pytester.path, ROOT, toys.folder))))
        monkeypatch.setenv("TRITON_CACHE_DIR", str(pytester.path / "triton"))
        place = store or built.store.path
        pytester.makeconftest(CONFTEST.replace("STORE", f"__import__('pathlib').Path({str(place)!r})"))
        pytester.makepyfile(test_inner=tests)
        replay = [f"--planfreeze-replay={plan}" for plan in plans]
        done = pytester.runpytest_subprocess(*OPTIONS, f"--planfreeze-store={place}", *replay, *options)
        return Outcome(int(done.ret), done.stdout.str() + done.stderr.str())

    return start


@pytest.fixture
def run_plain(run) -> Callable[..., Outcome]:
    """Run pytest without a replay."""
    return lambda tests, *options: run(tests, *options, plans=())


def test_the_entry_point_is_the_plugin() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"planfreeze": "planfreeze.pytest_plugin"}


def test_the_plugin_imports_nothing_else_until_it_is_used(interpreter) -> None:
    loaded = interpreter.run(
        """
        import sys, pytest
        before = set(sys.modules)
        import planfreeze.pytest_plugin
        print(*sorted(set(sys.modules) - before))
        """
    )
    assert loaded.split() == ["planfreeze", "planfreeze.pytest_plugin"]


def test_a_run_without_guards_imports_no_guard(run_plain) -> None:
    outcome = run_plain("import sys\ndef test_loaded(): assert 'planfreeze.pytest_plugin.witness' not in sys.modules")
    assert outcome.status == 0, outcome.text


def test_a_marked_test_that_swallows_a_refusal_fails_with_the_attempt(run_plain, pytester: pytest.Pytester) -> None:
    outcome = run_plain(
        """
        import pytest
        from conftest import try_to_compile
        @pytest.mark.no_compilation
        def test_swallowed():
            try_to_compile()
            try_to_compile()
        @pytest.mark.no_compilation
        def test_innocent(): pass
        """
    )
    assert outcome.status == 1
    assert "FAILED test_inner.py::test_swallowed" in outcome.text and "1 failed, 1 passed" in outcome.text
    assert re.search(
        r"triton was asked to compile toys\.add_triton\.add_kernel\(.*block: 128.*\(2 times\)", outcome.text
    )
    assert list((pytester.path / "triton").rglob("*.cubin")) == []


def test_the_fixture_gives_the_guard_and_fails_the_test_with_the_attempt(run_plain) -> None:
    outcome = run_plain(
        """
        from conftest import try_to_compile
        def test_counted(no_compilation):
            assert sum(no_compilation.attempts.values()) == 0
            try_to_compile()
            assert no_compilation.attempts["triton"] == 1
        def test_innocent(no_compilation): pass
        """
    )
    assert (outcome.status, "1 failed, 1 passed" in outcome.text) == (1, True)
    assert outcome.text.count("was asked to compile") >= 1
    assert "add_kernel" in outcome.text


def test_the_fixture_watches_what_other_fixtures_do_after_it(run_plain) -> None:
    outcome = run_plain(
        """
        import pytest
        from conftest import try_to_compile
        @pytest.fixture
        def before(no_compilation): try_to_compile()
        @pytest.fixture
        def after(no_compilation):
            yield
            try_to_compile()
        def test_before(before): pass
        def test_after(after): pass
        """
    )
    assert (outcome.status, "1 failed, 1 passed, 1 error" in outcome.text) == (1, True)


def test_a_test_that_skips_after_it_tried_fails_and_one_that_fails_shows_the_attempt(run_plain) -> None:
    outcome = run_plain(
        """
        import pytest
        from conftest import try_to_compile
        pytestmark = pytest.mark.no_compilation
        def test_skipped():
            try_to_compile()
            pytest.skip("no compiler")
        def test_failed():
            try_to_compile()
            assert 1 == 2
        """
    )
    assert "2 failed" in outcome.text
    assert "assert 1 == 2" in outcome.text
    assert outcome.text.count("was asked to compile") >= 2


def test_an_attempt_in_a_child_process_of_a_marked_test_fails_it(run_plain) -> None:
    outcome = run_plain(
        f"""
        import pytest
        @pytest.mark.no_compilation
        def test_child():
            {TRY_IN_CHILD.strip().replace(chr(10), "; ")}
        """
    )
    assert "1 failed" in outcome.text
    assert "add_kernel" in outcome.text


def test_a_test_may_compile_where_nothing_forbids_it(run_plain, pytester: pytest.Pytester) -> None:
    outcome = run_plain("from conftest import *\ndef test_compile(): try_to_compile()")
    assert (outcome.status, "planfreeze replay" in outcome.text) == (0, False)
    assert len(list((pytester.path / "triton").rglob("*.cubin"))) == 1


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
