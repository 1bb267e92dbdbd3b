"""Compiles that end their process: each costs one program, and no other builder, process or plan notices."""

import json
import subprocess
import sys

import pytest
from msgspec.structs import replace

from planfreeze import workers
from planfreeze.builds import build_plans
from planfreeze.cache.store import Store

# What a kernel's module does while it is compiled, by the mode of its payload.
MISCHIEF = """
    import ctypes, os, signal, sys
    from pathlib import Path

    def play(mode):
        kind, _, often = mode.partition(" ")
        seen = Path(os.environ["HOME"], f"seen {mode}")
        seen.write_text(f"{seen.read_text() if seen.exists() else ''}{os.getpid()}\\n")
        if often == "once" and len(seen.read_text().splitlines()) > 1:
            return
        print(f"this is the end: {kind}", file=sys.stderr, flush=True)
        if kind == "SIGSEGV":
            ctypes.string_at(0)
        if kind == "SIGABRT":
            os.abort()
        if kind in ("SIGKILL", "SIGILL"):
            os.kill(os.getpid(), getattr(signal, kind))
        if kind == "exit":
            os._exit(3)
        if kind == "memory":
            bytearray(1 << 45)  # beyond the limit of the process, so that none is taken
        if kind == "refuse":
            raise ArithmeticError("this kernel has no solution")
"""
MODEL = """
hidden = 64
intermediate = 1
experts = 1
top_k = 1
weight_format = "mxfp4"
programs = "{}:enumerate_programs"
"""


@pytest.fixture
def start_build(interpreter, tmp_path):
    """Run the command line's build of a model that a package of ``tmp_path`` enumerates; under a limit if asked to."""
    interpreter = replace(interpreter, folders=(tmp_path / "packages", *interpreter.folders))

    def run(programs: str, *, limit_kb: int | None = None) -> tuple[int, dict, str]:
        path = tmp_path / "crowd.toml"
        path.write_text(MODEL.format(programs))
        options = ("--model", path, "--arch", "sm_90a", "--store", tmp_path / "store", "--jobs", "2", "--json")
        command = [sys.executable, "-m", "planfreeze", "build", *map(str, options)]
        if limit_kb is not None:
            command = ["sh", "-c", f'ulimit -v {limit_kb} && exec "$@"', "sh", *command]
        done = subprocess.run(
            command, env=interpreter.environment(), cwd=interpreter.home, capture_output=True, text=True, timeout=300
        )
        return done.returncode, json.loads(done.stdout or "{}"), done.stderr

    run.home = interpreter.home
    return run


MODES = ("SIGSEGV", "SIGABRT", "SIGKILL", "SIGILL", "exit", "refuse", "SIGKILL once", "plain")
MODELS = """
    from .families import AddPayload, CopyPayload

    def enumerate_programs(model, *, tp, target, options):
        return (*(CopyPayload(mode=mode) for mode in {}), AddPayload(block=64))
"""


def test_a_compile_that_a_signal_ends_is_tried_once_more_and_costs_one_program(start_build, make_package, tmp_path):
    make_package("crashing", mischief=MISCHIEF, models=MODELS.format(MODES))
    status, report, said = start_build("crashing.models")
    failed = {line["payload"]["mode"]: line["reason"] for line in report["failed"]}
    retried = {line["payload"]["mode"]: line["reason"] for line in report["retried"]}
    signals = {"SIGSEGV": 11, "SIGABRT": 6, "SIGKILL": 9, "SIGILL": 4}
    assert status == 1 and report["plans"] == [], said
    assert set(failed) == {*signals, "exit", "refuse"} and report["compiled"] == 3
    # Every one is named with its log; what a signal ended has two processes, and both are told.
    assert set(retried) == {*signals, "SIGKILL once"}
    for mode, number in signals.items():
        for told in (failed[mode], retried[mode]):
            assert f"ended with signal {number} ({mode})" in told and f"this is the end: {mode}" in told
        assert f"error: crashing_copy(mode={mode}) (sm_90a): the compile process" in said
        assert f"crashing_copy(mode={mode}) (sm_90a) was compiled twice, at first: the compile process" in said
    assert "ended with status 3" in failed["exit"] and "this is the end: exit" in failed["exit"]
    assert "this kernel has no solution" in failed["refuse"]
    seen = {path.name.removeprefix("seen "): path.read_text().split() for path in start_build.home.glob("seen *")}
    tries = {"exit": 1, "refuse": 1, "SIGSEGV": 2, "SIGABRT": 2, "SIGILL": 2, "SIGKILL": 2, "SIGKILL once": 2}
    assert {kind: len(set(processes)) for kind, processes in seen.items()} == tries, "a process of its own each"
    store = Store.open(tmp_path / "store")
    assert len(list(store.entries("record"))) == 3 and list(store.list_refs()) == []


def test_a_compile_without_memory_costs_one_program(start_build, make_package):
    make_package("hungry", mischief=MISCHIEF, models=MODELS.format(("plain", "memory")))
    status, report, said = start_build("hungry.models", limit_kb=24 << 20)
    assert status == 1 and report["compiled"] == 2, said
    (failed,) = report["failed"]
    assert failed["payload"] == {"mode": "memory"} and "MemoryError" in failed["reason"]


CROWD = """
    from broken.families import AddPayload as Broken
    from crashing.families import CopyPayload as Crashing
    from crowd.families import AddPayload

    def enumerate_programs(model, *, tp, target, options):
        whole = [AddPayload(block=block, warps=warps) for block in (16, 32, 64) for warps in (1, 2, 4)]
        whole += [AddPayload(block=block, warps=warps) for block in (128, 256, 512) for warps in (1, 2, 4)]
        return (*whole[:6], Broken(block=64), *whole[6:11], Crashing(), *whole[11:])
"""


def test_a_broken_and_a_crashing_kernel_among_twenty_leave_eighteen_and_no_plan(start_build, make_package, tmp_path):
    make_package("crowd", models=CROWD)
    broken, crashing = (
        make_package(name) / file for name, file in (("broken", "add_triton.py"), ("crashing", "copy_cute.py"))
    )
    mended = {path: path.read_text() for path in (broken, crashing)}
    broken.write_text(mended[broken].replace("tl.load(", "tl.no_such_operation("))
    crashing.write_text(mended[crashing].replace("self.launch = launch", "import os; os.abort()"))

    status, report, said = start_build("crowd.models")
    assert (status, report["compiled"], report["plans"]) == (1, 18, []), said
    first, second = sorted(report["failed"], key=lambda line: line["family"])
    assert first["family"] == "broken_add" and "no_such_operation" in first["reason"]
    assert second["family"] == "crashing_copy" and "ended with signal 6 (SIGABRT)" in second["reason"]
    assert "error: broken_add(block=64, warps=1) (sm_90a): " in said
    assert "error: crashing_copy(mode=plain) (sm_90a): " in said
    store = Store.open(tmp_path / "store")
    assert len(list(store.entries("record"))) == 18
    assert list(store.entries("plan")) == [] and store.list_refs() == {}, "nothing claims to be complete"

    for path, text in mended.items():
        path.write_text(text)
    status, report, said = start_build("crowd.models")
    assert (status, report["compiled"], report["reused"], report["failed"]) == (0, 2, 18, []), said
    (plan,) = report["plans"]
    assert len(plan["programs"]) == 20 and store.get_ref(plan["name"]) == plan["root"]


def test_a_compile_that_takes_too_long_is_ended_and_not_tried_again(toys, toolchains, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))  # where the kernel says that it waits
    monkeypatch.setattr(workers, "COMPILE_TIMEOUT_S", 3.0)
    store = Store.open(tmp_path / "store", writable=True)
    plan = toys.plan(toys.families.CopyPayload(mode="wait"))
    (outcome,) = build_plans([plan], store, jobs=1, toolchains=toolchains).outcomes
    assert "toys.families:copy was ended after 3 s" in outcome.reason
    assert (outcome.status, outcome.earlier) == ("failed", "")
