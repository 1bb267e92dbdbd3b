"""The spawn road: a compiler's process does not start, by whatever means; every other process does."""

import pytest

SETUP = """
import asyncio, json, pty, shutil, subprocess
from concurrent.futures import ThreadPoolExecutor
from planfreeze.guard import Guard, installed_roads, no_compilation, prove
here = Path.cwd()
tools = here / "tools"
tools.mkdir()
# A compiler that only says it ran.
(tools / "gcc").write_text(f"#!/bin/sh\\necho $0 $@ >> {here}/ran\\n")
(tools / "gcc").chmod(0o755)
(here / "tool").symlink_to(tools / "gcc")
os.environ["PATH"] = f"{tools}:{os.environ['PATH']}"
gcc = str(tools / "gcc")
def runs():
    path = here / "ran"
    found = len(path.read_text().splitlines()) if path.exists() else 0
    path.unlink(missing_ok=True)
    return found
def fork_and_execute():
    child = os.fork()
    if child == 0:
        os.execv(gcc, ["gcc", "x.c"])
    os.waitpid(child, 0)
async def start(function, *words):
    return await (await function(*words)).wait()
def wait(child):
    os.waitpid(child, 0)
ENTRIES = {
    "name": lambda: subprocess.run(["gcc", "x.c"]),
    "path": lambda: subprocess.run([gcc, "x.c"]),
    "link": lambda: subprocess.run([str(here / "tool"), "x.c"]),
    "relative": lambda: subprocess.run(["./tool", "x.c"], cwd=here),
    "executable": lambda: subprocess.run(["other", "x.c"], executable=gcc),
    "environment": lambda: subprocess.run(["gcc", "x.c"], env={"PATH": str(tools)}),
    "bytes": lambda: subprocess.run([b"gcc", Path("x.c")]),
    "shell": lambda: subprocess.run("cd / && CC=1 gcc x.c", shell=True),
    "shell words": lambda: subprocess.run(["sh", "-c", "ls >/dev/null; gcc x.c"]),
    "posix_spawn under subprocess": lambda: subprocess.run([gcc, "x.c"], close_fds=False),
    "check_output": lambda: subprocess.check_output(["env", "A=1", "gcc", "x.c"]),
    "os.system": lambda: os.system("gcc x.c"),
    "os.popen": lambda: os.popen("gcc x.c").close(),
    "posix_spawn": lambda: wait(os.posix_spawn(gcc, ["gcc", "x.c"], os.environ)),
    "posix_spawnp": lambda: wait(os.posix_spawnp("gcc", ["gcc", "x.c"], dict(os.environ))),
    "spawnv": lambda: os.spawnv(os.P_WAIT, gcc, ["gcc", "x.c"]),
    "spawnlp": lambda: os.spawnlp(os.P_WAIT, "gcc", "gcc", "x.c"),
    "spawnve": lambda: os.spawnve(os.P_WAIT, gcc, ["gcc", "x.c"], os.environ),
    "asyncio": lambda: asyncio.run(start(asyncio.create_subprocess_exec, "gcc", "x.c")),
    "asyncio shell": lambda: asyncio.run(start(asyncio.create_subprocess_shell, "gcc x.c")),
    "thread": lambda: ThreadPoolExecutor(1).submit(subprocess.run, ["gcc", "x.c"]).result(),
    "terminal": lambda: pty.spawn(["gcc", "x.c"]),
}
"""


def test_no_compiler_starts_by_any_means(run_script) -> None:
    checks = """
    for name, entry in ENTRIES.items():
        with no_compilation() as guard:
            error = refused(entry)
        assert guard.attempts == {"spawn": 1}, (name, guard.attempts)
        assert "x.c" in error.attempt.signature and error.exit_code == 5, (name, error)
        assert "script.py:" in error.attempt.location or name == "thread", (name, error)
        assert runs() == 0, name
    with no_compilation() as guard:
        error = refused(os.execvp, "gcc", ["gcc", "x.c"])
        error = refused(os.execve, os.open(gcc, os.O_RDONLY), ["cc", "x.c"], os.environ)
        fork_and_execute()
    assert guard.attempts == {"spawn": 2} and runs() == 0, "the child is stopped there, and not counted here"
    """
    run_script(SETUP, checks)


def test_every_compiler_starts_once_when_counted_and_after_release(run_script) -> None:
    checks = """
    for name, entry in ENTRIES.items():
        with no_compilation("count") as guard:
            entry()
        assert guard.attempts == {"spawn": 1}, (name, guard.attempts)
        assert runs() == 1, name
        entry()
        assert runs() == 1 and guard.attempts == {"spawn": 1}, name
    assert installed_roads() == ()
    """
    run_script(SETUP, checks)


def test_other_processes_and_questions_about_versions_are_allowed(run_script) -> None:
    checks = """
    with no_compilation() as guard:
        assert subprocess.run(["echo", "gcc x.c"], capture_output=True).stdout == b"gcc x.c\\n"
        assert os.system("true && echo gcc >/dev/null") == 0
        assert os.spawnlp(os.P_WAIT, "true", "true", "gcc") == 0
        subprocess.run(["gcc", "--version"])
        subprocess.run("gcc -dumpversion; gcc -print-search-dirs", shell=True)
        assert subprocess.run([sys.executable, "-c", "import os; os._exit(7)"]).returncode == 7
        for words in ([], [3], None):
            try:
                subprocess.Popen(words)
            except (IndexError, OSError, TypeError, ValueError) as error:
                assert "guard" not in str(error)
            else:
                raise AssertionError(words)
    assert not guard.attempts and runs() == 3
    """
    run_script(SETUP, checks)


def test_a_library_is_looked_for_with_the_linkers_help(run_script) -> None:
    checks = """
    from ctypes.util import find_library
    started.clear()
    with no_compilation() as guard:
        assert find_library("planfreeze_has_no_such_library") is None
    assert not guard.attempts and runs() == 1, started
    """
    run_script(SETUP, checks)


def test_hooks_of_others_hear_what_they_heard_before(run_script) -> None:
    checks = """
    started.clear()
    with no_compilation() as guard:
        subprocess.run(["true"])
        refused(subprocess.run, ["gcc", "x.c"])
        late = []
        sys.addaudithook(lambda event, arguments: late.append(event) if event == "subprocess.Popen" else None)
        subprocess.run(["true"])
    assert started == ["true", "gcc", "true"] and late == ["subprocess.Popen"]
    """
    run_script(SETUP, checks)


def test_one_hook_serves_all_guards_of_a_process(run_script) -> None:
    checks = """
    added = []
    sys.addaudithook(lambda event, arguments: added.append(event) if event == "sys.addaudithook" else None)
    for _ in range(3):
        with no_compilation() as outer, no_compilation("count") as inner:
            refused(subprocess.run, ["gcc", "x.c"])
        assert outer.attempts == inner.attempts == {"spawn": 1}
    assert len(added) == 1
    subprocess.run(["gcc", "x.c"])
    assert runs() == 1
    """
    run_script(SETUP, checks)


def test_a_process_that_forbids_the_hook_is_told(run_script) -> None:
    checks = """
    from planfreeze.errors import UnwatchableRoad
    def veto(event, arguments):
        if event == "sys.addaudithook":
            raise RuntimeError("no hooks here")
    sys.addaudithook(veto)
    guard = Guard()
    try:
        guard.arm()
    except UnwatchableRoad as error:
        assert error.road == "spawn"
    else:
        raise AssertionError("armed without its hook")
    assert not guard.is_armed
    """
    run_script(SETUP, checks)


def test_a_proof_finds_the_hook_awake_and_starts_nothing(run_script) -> None:
    checks = """
    started.clear()
    assert prove("spawn") is False
    with no_compilation() as guard:
        assert prove("spawn") is True and not guard.attempts
        from planfreeze.guard.spawn import listeners
        listeners.reports = ()
        assert prove("spawn") is False
    """
    run_script(SETUP, checks)


@pytest.mark.parametrize("mode", ["warn", "count"])
def test_what_an_allowed_compile_starts_is_part_of_it(run_script, triton_kernel: str, mode: str) -> None:
    checks = f"""
    import warnings
    started.clear()
    with warnings.catch_warnings(record=True), no_compilation({mode!r}) as guard:
        triton.compile(make_source(), target=SM_90)
    assert guard.attempts == {{"triton": 1}}, guard.attempts
    assert any("ptxas" in str(name) for name in started), started
    """
    run_script(triton_kernel, SETUP, checks)


def test_an_unrelated_event_costs_less_than_a_microsecond(run_script) -> None:
    checks = """
    import timeit
    def cost_ns():
        count = 100_000
        return min(timeit.repeat(lambda: sys.audit("planfreeze.other", 1), number=count, repeat=5)) / count * 1e9
    before = cost_ns()
    with no_compilation():
        armed = cost_ns()
    print(before, armed, cost_ns())
    assert armed - before < 1000
    """
    run_script(SETUP, checks)
