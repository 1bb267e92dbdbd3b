"""Children: an armed guard travels into the Python processes it starts, and leaves no trace when it is released."""

import os
import subprocess
from pathlib import Path

import pytest

from planfreeze.builds import build_plans
from planfreeze.cache.store import Store
from planfreeze.guard import child_environment, no_compilation, read_log
from planfreeze.guard.children import Announcement, without_guard
from planfreeze.processes import build_in_child
from planfreeze.resolve import PlanReference
from planfreeze.search_path import STARTUP_FOLDER

SETUP = """
import json, subprocess
from planfreeze.guard import Guard, no_compilation, read_log
def run_child(text, *options, environ=None, program=sys.executable):
    "Run a script in a child; return its status, output and errors."
    command = [program, *options, "-c", text]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.strip(), done.stderr
TELL = '''
import os, sys
watching = sys.modules.get("planfreeze.guard.watch")
print([(guard.mode, sorted(guard.allowed)) for guard in watching.watch.armed] if watching else None)
'''
"""

# A module that children import: a Triton compile, and what a process pool calls.
TASK = '''
Path("task.py").write_text("""
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import ASTSource
@triton.jit
def in_child():
    pass
def attempt(number=0):
    try:
        return triton.compile(ASTSource(fn=in_child, signature={}), target=GPUTarget("cuda", 90, 32)).asm["cubin"]
    except Exception as error:
        return type(error).__name__, str(error)
""")
'''


def test_a_child_is_refused_before_its_compiler_starts(run_triton) -> None:
    checks = """
    with no_compilation() as guard:
        status, said, errors = run_child("import sys; sys.path.insert(0, '.'); import task; print(task.attempt())")
        assert status == 0 and "CompilationForbidden" in said and "task.in_child" in said, (said, errors)
        assert "because the one that started it was (PLANFREEZE_GUARD)" in said
    assert not guard.attempts and traces()[0] == 0
    status, said, errors = run_child("import sys; sys.path.insert(0, '.'); import task; print(task.attempt())")
    assert status == 0 and said.startswith("b"), "released, its children compile"
    """
    run_triton(SETUP, TASK, checks)


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_processes_of_multiprocessing_and_of_pools_are_guarded_and_logged(run_script, tmp_path, method: str) -> None:
    pytest.importorskip("triton")
    checks = f"""
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor
    def main():
        sys.path.insert(0, os.getcwd())
        context = multiprocessing.get_context({method!r})
        with no_compilation():
            import task
            with context.Pool(1) as pool:
                answers = [pool.apply(task.attempt)]
            with ProcessPoolExecutor(1, mp_context=context) as pool:
                answers += [pool.submit(task.attempt).result()]
            process = context.Process(target=task.attempt)
            process.start()
            process.join()
        assert [name for name, _ in answers] == ["CompilationForbidden"] * 2, answers
        assert traces()[0] == 0
    if __name__ == "__main__":
        main()
    """
    log = tmp_path / "attempts.log"
    run_script(SETUP, TASK, checks, PLANFREEZE_GUARD_LOG=str(log))
    logged = read_log(log)
    assert [entry.attempt.road for entry in logged] == ["triton"] * 3
    assert len({entry.pid for entry in logged}) == 3 and all(entry.pid for entry in logged)
    assert {entry.attempt.kernel for entry in logged} == {"task.in_child"}
    assert all("task.py:" in entry.attempt.location and entry.thread == "MainThread" for entry in logged)


def test_mode_and_allowed_roads_travel_and_loads_are_always_allowed(run_script) -> None:
    checks = """
    assert run_child(TELL)[1] == "None"
    with no_compilation("count"):
        assert run_child(TELL)[1] == "[('count', ['triton-load'])]"
        with no_compilation("raise", allowed=frozenset({"cute"})):
            assert run_child(TELL)[1] == "[('raise', ['cute', 'triton-load'])]"
            with no_compilation("warn"):
                assert run_child(TELL)[1] == "[('raise', ['cute', 'triton-load'])]", "the strictest"
            with no_compilation("raise"):
                assert run_child(TELL)[1] == "[('raise', ['triton-load'])]", "what all of them allow"
        assert run_child(TELL)[1] == "[('count', ['triton-load'])]"
        nested = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {TELL!r}], check=True)"
        assert run_child(nested)[1] == "[('count', ['triton-load'])]", "grandchildren"
        assert run_child(TELL, environ=dict(PATH=os.environ["PATH"]))[1] == "None", "an environment of its own"
        for option in ("-S", "-I", "-E"):
            assert run_child(TELL, option)[1:] == ("None", ""), option
        assert os.system(f"{sys.executable} -c 'import sys; sys.exit(\\"planfreeze.guard\\" not in sys.modules)'") == 0
    with no_compilation("off"):
        assert run_child(TELL)[1] == "None"
    """
    run_script(SETUP, checks)


def test_the_environment_is_what_it_was_after_release(run_script) -> None:
    checks = """
    for before in (None, "", "/a", "/a::/b"):
        os.environ.pop("PYTHONPATH", None)
        if before is not None:
            os.environ["PYTHONPATH"] = before
        found = dict(os.environ)
        with no_compilation():
            folder, _, rest = os.environ["PYTHONPATH"].partition(":")
            assert folder.endswith("planfreeze/startup") and rest == (before or "")
            with no_compilation("count"):
                assert os.environ["PYTHONPATH"].count("startup") == 1
        assert dict(os.environ) == found, before
    with no_compilation():
        os.environ["PYTHONPATH"] = "/theirs:" + os.environ["PYTHONPATH"]
        os.environ["PLANFREEZE_GUARD"] = "count"
        theirs = os.environ["PYTHONPATH"]
    assert os.environ["PYTHONPATH"] == theirs and os.environ["PLANFREEZE_GUARD"] == "count", "changed since: theirs"
    assert "PLANFREEZE_GUARD_ALLOWED" not in os.environ
    """
    run_script(SETUP, checks)


def test_environments_are_made_and_taken_back_as_values(tmp_path: Path) -> None:
    plain = {"HOME": "/h", "PYTHONPATH": "/a"}
    made = child_environment(plain, "raise", tmp_path / "log", frozenset({"cute"}))
    assert made == {
        "HOME": "/h",
        "PYTHONPATH": f"{STARTUP_FOLDER}:/a",
        "PLANFREEZE_GUARD": "raise",
        "PLANFREEZE_GUARD_ALLOWED": "cute",
        "PLANFREEZE_GUARD_LOG": str(tmp_path / "log"),
    }
    assert child_environment(made, "raise", tmp_path / "log", frozenset({"cute"})) == made
    assert without_guard(made) == plain
    assert without_guard(child_environment({}, "count")) == {}
    assert Path(child_environment({}, "count", Path("log"))["PLANFREEZE_GUARD_LOG"]).is_absolute()


def test_what_others_set_while_a_guard_is_armed_is_left_to_them() -> None:
    environ = {"PYTHONPATH": "/a"}
    announcement = Announcement(environ)
    announcement.update([("raise", frozenset())])
    del environ["PLANFREEZE_GUARD"]
    environ["PYTHONPATH"] = "/b"
    announcement.update([("raise", frozenset()), ("count", frozenset())])
    assert "PLANFREEZE_GUARD" not in environ and environ["PYTHONPATH"] == "/b"
    announcement.update([])
    assert environ == {"PYTHONPATH": "/b"}


class Recorded(dict[str, str]):
    """An environment that keeps every state of one variable."""

    def __init__(self) -> None:
        super().__init__()
        self.states: list[str | None] = []

    def __setitem__(self, name: str, value: str) -> None:
        super().__setitem__(name, value)
        self.states.append(self.get("PLANFREEZE_GUARD"))

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        self.states.append(self.get("PLANFREEZE_GUARD"))


def test_nested_guards_leave_no_moment_without_one() -> None:
    environ = Recorded()
    announcement = Announcement(environ)
    announcement.update([("count", frozenset())])
    announcement.update([("count", frozenset()), ("raise", frozenset({"cute"}))])
    announcement.update([("raise", frozenset({"cute"}))])
    assert (environ["PLANFREEZE_GUARD"], environ["PLANFREEZE_GUARD_ALLOWED"]) == ("raise", "cute")
    announcement.update([("count", frozenset())])
    assert environ["PLANFREEZE_GUARD"] == "count" and None not in environ.states
    announcement.update([])
    assert environ == {}


def test_builds_of_planfreeze_are_not_guarded(
    toys, toolchains: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = toys.plan(toys.families.AddPayload(block=32))
    with no_compilation() as guard:
        report = build_plans([plan], Store.open(tmp_path / "store", writable=True), jobs=1, toolchains=toolchains)
        assert [outcome.status for outcome in report.outcomes] == ["compiled"] and not guard.attempts
        seen = {}
        monkeypatch.setattr(
            "planfreeze.processes.subprocess.run",
            lambda command, env, **options: seen.update(env) or subprocess.CompletedProcess(command, 0),
        )
        assert "PLANFREEZE_GUARD" in os.environ
        build_in_child(PlanReference.parse("ds41-tp4-sm_90a"), tmp_path, is_trusted=False)
    assert "PATH" in seen and not [name for name in seen if name.startswith("PLANFREEZE_GUARD")]
    assert STARTUP_FOLDER not in seen.get("PYTHONPATH", "")
