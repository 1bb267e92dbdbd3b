"""Logs: every attempt of every process of a run is one whole line, or the attempt says why it is not."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from planfreeze.errors import CompilationForbidden, GuardLogFailed
from planfreeze.guard import Attempt, no_compilation, read_log
from planfreeze.guard.logs import write_log
from planfreeze.guard.watch import watch

ATTEMPT = Attempt(road="cute", kernel="m.k", facts=(("x", "Int64"),), location="app.py:12", action="build")


def test_an_attempt_is_one_line_and_reads_back(tmp_path: Path) -> None:
    log = tmp_path / "log"
    write_log(log, ATTEMPT)
    (line,) = log.read_text().splitlines()
    assert json.loads(line) == {
        "pid": os.getpid(),
        "road": "cute",
        "kernel": "m.k",
        "signature": "x: Int64",
        "location": "app.py:12",
        "thread": "MainThread",
        "action": "build",
    }
    (entry,) = read_log(log)
    assert (entry.pid, entry.thread, str(entry.attempt)) == (os.getpid(), "MainThread", str(ATTEMPT))


def test_lines_of_processes_that_write_at_once_stay_whole(tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = (
        "import sys; from pathlib import Path; from planfreeze.guard import Attempt; "
        "from planfreeze.guard.logs import write_log\n"
        "for number in range(200):\n"
        "    write_log(Path(sys.argv[1]), Attempt(road='r', kernel=str(number) + 'k' * 9000, location='a:1'))\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", script, str(log)]) for _ in range(4)]
    assert [writer.wait(120) for writer in writers] == [0] * 4
    entries = read_log(log)
    assert len(entries) == 800 and {entry.attempt.road for entry in entries} == {"r"}
    for writer in writers:
        mine = [entry.attempt.kernel.rstrip("k") for entry in entries if entry.pid == writer.pid]
        assert mine == [str(number) for number in range(200)]


def test_an_armed_guard_logs_what_it_hears_in_every_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    monkeypatch.setenv("PLANFREEZE_GUARD_LOG", str(log))
    load = Attempt(road="triton-load", kernel="m.k", location="app.py:1", action="load")
    with no_compilation("count"), no_compilation("count"):
        watch.report(ATTEMPT)
        watch.report(load)
    with no_compilation(), pytest.raises(CompilationForbidden):
        watch.report(ATTEMPT)
    watch.report(ATTEMPT)
    monkeypatch.delenv("PLANFREEZE_GUARD_LOG")
    with no_compilation("count"):
        watch.report(ATTEMPT)
    assert [entry.attempt.road for entry in read_log(log)] == ["cute", "cute"]


@pytest.mark.parametrize("path", ["/dev/full", "/nonexistent/log"])
@pytest.mark.parametrize("mode", ["raise", "count"])
def test_an_attempt_that_cannot_be_logged_is_an_error(path: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANFREEZE_GUARD_LOG", path)
    with no_compilation(mode) as guard, pytest.raises(GuardLogFailed) as caught:  # type: ignore[arg-type]
        watch.report(ATTEMPT)
    assert guard.attempts == {"cute": 1}
    assert caught.value.path == path and "cute was asked to build m.k" in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_log_that_nobody_wrote_has_no_attempts(tmp_path: Path) -> None:
    assert read_log(tmp_path / "log") == ()


@pytest.mark.parametrize("line", [b'{"pid": 1, "road"', b"[]", b"\xff\xfe", b'{"road": "triton"}', b'{"pid": null}'])
def test_a_line_that_cannot_be_read_is_an_attempt_all_the_same(tmp_path: Path, line: bytes) -> None:
    log = tmp_path / "log"
    write_log(log, ATTEMPT)
    with log.open("ab") as stream:
        stream.write(line + b"\n")
    write_log(log, ATTEMPT)
    assert [entry.attempt.road for entry in read_log(log)] == ["cute", "unknown", "cute"]


def test_a_process_forked_while_locks_are_held_still_refuses(run_script) -> None:
    checks = """
    import threading
    from planfreeze.guard import Attempt, no_compilation
    from planfreeze.guard.watch import watch
    attempt = Attempt(road="cute", kernel="k", location="a:1")
    with no_compilation() as guard:
        held, done = threading.Event(), threading.Event()
        def hold():
            with guard.lock, watch.lock:
                held.set()
                done.wait(60)
        thread = threading.Thread(target=hold)
        thread.start()
        assert held.wait(60)
        child = os.fork()
        if child == 0:
            refused(watch.report, attempt)
            os._exit(7)
        _, status = os.waitpid(child, 0)
        done.set()
        thread.join()
        assert os.waitstatus_to_exitcode(status) == 7
    """
    run_script(checks)
