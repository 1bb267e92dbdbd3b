"""Scratch folders of compile processes: removed with them, or later when they were killed; never while one lives."""

import os
import signal
from pathlib import Path

import pytest

from planfreeze.cache.claims import create_claimed
from planfreeze.scratch import PREFIX, ScratchFolder

# A compile process that is busy, and a parent that waits to be killed. A stopped one would not do: the kernel hangs up
# on it when its parent ends.
PARENT = """
import sys
from planfreeze.target import target
from planfreeze.workers import Worker
sys.executable = sys.argv[1]
worker = Worker(target("sm_90a"))
print(worker._process.pid, flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Where this process and its children keep temporary files."""
    place = tmp_path / "home"
    monkeypatch.setattr("tempfile.tempdir", str(place))
    return place


def folders(place):
    return [path for path in place.iterdir() if path.name.startswith(PREFIX)]


def is_alive(process):
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False


def test_folder_is_private_and_goes_with_its_process(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    scratch = ScratchFolder()
    assert scratch.path.parent == tmp_path and scratch.path.stat().st_mode & 0o777 == 0o700
    (scratch.path / "deep").mkdir()
    (scratch.path / "deep" / "file").write_bytes(b"x")
    scratch.close()
    assert list(tmp_path.iterdir()) == []


def test_folder_of_a_killed_build_is_removed_by_the_next_one(interpreter, place, tmp_path):
    busy = tmp_path / "busy"
    busy.write_text("#!/bin/sh\nexec sleep 600\n")
    busy.chmod(0o755)
    parent = interpreter.start("-c", PARENT, str(busy))
    worker = int(parent.stdout.readline())
    (left,) = folders(place)
    other = ScratchFolder()
    assert left.exists(), "its processes live"
    parent.kill()
    parent.wait()
    ScratchFolder().close()
    assert left.exists(), "the compile process lives"
    os.kill(worker, signal.SIGKILL)
    while is_alive(worker):  # its parent is gone, so that nobody here can wait for it
        pass
    ScratchFolder().close()
    assert folders(place) == [other.path]
    other.close()


@pytest.mark.parametrize("prefix", [f"{PREFIX}{'f' * 16}-{'0' * 32}-0", f"{PREFIX}abc", "planfreeze"])
def test_folder_that_bears_no_mark_of_this_kernel_stays(tmp_path, monkeypatch, prefix):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / prefix).mkdir()
    os.utime(tmp_path / prefix, (0, 0))
    ScratchFolder().close()
    assert (tmp_path / prefix).is_dir()


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a folder away takes root")
def test_folder_of_another_user_stays(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path, handle = create_claimed(tmp_path, PREFIX, is_folder=True)
    os.close(handle)
    os.chown(path, 54321, 54321)
    ScratchFolder().close()
    assert path.is_dir()
    os.chown(path, 0, 0)
    ScratchFolder().close()
    assert not path.exists()
