"""Builders beside each other: each key is compiled once, waiting is told, and an interrupt keeps what is published."""

import json
import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from planfreeze import slots
from planfreeze.cache.store import Store
from planfreeze.progress import describe_wait, print_outcome
from planfreeze.record import ProgramRecord

from .conftest import BUILD, list_names, quarantined, statuses


def test_sixteen_builders_compile_each_key_once(interpreter, toolchains, tmp_path):
    script = BUILD + (
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "payloads = (*(AddPayload(block=block) for block in (16, 32, 64)), CopyPayload())\n"
        "print(json.dumps(summary(build(sys.argv[1], payloads, sys.argv[2], jobs=2))))\n"
    )
    started = [interpreter.start("-c", script, str(tmp_path / "store"), str(toolchains)) for _ in range(16)]
    for builder in started:
        assert builder.stdout.readline() == "ready\n", builder.stderr.read()
    for builder in started:
        builder.stdin.write("\n")
        builder.stdin.flush()
    ended = [builder.communicate(timeout=300) for builder in started]
    assert [builder.returncode for builder in started] == [0] * 16, ended
    made = [json.loads(output) for output, _ in ended]
    for key in made[0]["status"]:
        found = [one["status"][key] for one in made]
        assert sorted(found) == ["compiled", *["reused"] * 15]
    assert len({tuple(one["roots"]) for one in made}) == 1 and len(made[0]["roots"]) == 1
    store = Store.open(tmp_path / "store")
    assert list(store.list_refs().values()) == made[0]["roots"]
    assert list(store.layout.temporaries.iterdir()) == quarantined(store) == []


# A model of the package: the first program compiles, the second one does what the model's name says.
MODEL = """
hidden = 64
intermediate = 1
experts = 1
top_k = 1
weight_format = "mxfp4"
programs = "toys.models:enumerate_programs"
"""


@pytest.fixture
def start_build(interpreter, tmp_path):
    """Start the command line's build of a model of the package ``toys``."""

    def start(model: str) -> subprocess.Popen[str]:
        path = tmp_path / f"{model}.toml"
        path.write_text(MODEL)
        store = str(tmp_path / "store")
        return interpreter.start(
            *("-m", "planfreeze", "build", "--model", str(path), "--arch", "sm_90a", "--store", store, "--jobs", "1")
        )

    return start


def test_interrupted_build_keeps_what_is_published_and_exits_130(start_build, interpreter, tmp_path, wait_for):
    builder = start_build("wait")
    worker = int(wait_for(interpreter.home / "waiting"))
    builder.send_signal(signal.SIGINT)
    _, errors = builder.communicate(timeout=60)
    assert builder.returncode == 130, errors
    assert "interrupted" in errors and "Traceback" not in errors
    store = Store.open(tmp_path / "store")
    (key,) = list_names(store, "record")
    assert store.get_blob(ProgramRecord.decode(store.get_record(key)).blob)
    assert store.list_refs() == {} and list(store.layout.temporaries.iterdir()) == []
    assert not Path(f"/proc/{worker}").exists(), "no compile process is left"
    assert [path.name for path in interpreter.home.glob("planfreeze-*")] == []


def test_builder_that_waits_for_another_one_can_be_interrupted(start_build, built, tmp_path):
    store = Store.open(tmp_path / "store", writable=True)
    with store.lock_key(built.keyed[1].key.digest, timeout_s=1):
        builder = start_build("plain")
        assert "compiled toys_add" in builder.stderr.readline(), "the other program comes first"
        builder.send_signal(signal.SIGINT)
        _, errors = builder.communicate(timeout=60)
    assert builder.returncode == 130, errors
    assert len(list_names(store, "record")) == 1


def test_failed_program_gives_exit_status_1(start_build, tmp_path):
    builder = start_build("raise")
    _, errors = builder.communicate(timeout=60)
    assert builder.returncode == 1, errors
    assert "error: toys_copy(mode=raise) (sm_90a)" in errors and "this kernel has no solution" in errors
    assert Store.open(tmp_path / "store").list_refs() == {}


def test_builder_waits_for_another_one_and_takes_its_program(built, build, toys, empty):
    key = built.keyed[0].key.digest
    outcome = built.report.outcomes[0]
    told = threading.Event()
    reports, waits = [], []

    def hear(outcome):
        waits.append(outcome) if outcome.status == "waiting" else told.set()

    def run():
        reports.append(build(empty, built.plan, on_outcome=hear))

    with empty.lock_key(key, timeout_s=1):
        builder = threading.Thread(target=run)
        builder.start()
        assert told.wait(60), "the program that is not locked is compiled meanwhile"
        empty.put_blob(built.store.get_blob(outcome.record.blob))
        empty.put_record(key, built.store.get_record(key))
    builder.join(60)
    assert statuses(reports[0]) == ["reused", "compiled"]
    assert waits and {wait.program.key.digest for wait in waits} == {key}
    assert f"process {os.getpid()} on " in describe_wait(waits[0]) and built.keyed[0].name in describe_wait(waits[0])


def test_builder_that_waits_says_so_every_so_often(built, build, empty, monkeypatch, capsys):
    monkeypatch.setattr(slots, "LOCK_TIMEOUT_S", 0.5)
    monkeypatch.setattr(slots, "LOCK_STEP_S", 0.02)
    monkeypatch.setattr(slots, "TELL_S", 0.2)
    with empty.lock_key(built.keyed[0].key.digest, timeout_s=1):
        report = build(empty, built.plan, on_outcome=print_outcome)
    assert statuses(report) == ["failed", "compiled"]
    waits = [line for line in capsys.readouterr().err.splitlines() if line.startswith("waiting ")]
    assert 1 <= len(waits) <= 4


def test_builder_that_waited_in_vain_names_the_holder(built, build, empty, monkeypatch):
    monkeypatch.setattr(slots, "LOCK_TIMEOUT_S", 0.2)
    monkeypatch.setattr(slots, "LOCK_STEP_S", 0.1)
    with empty.lock_key(built.keyed[0].key.digest, timeout_s=1):
        report = build(empty, built.plan)
    assert statuses(report) == ["failed", "compiled"] and report.plans == ()
    assert "has held key" in report.outcomes[0].reason and "process" in report.outcomes[0].reason
