"""Users with few rights: sessions change nothing, and no home and no name are needed."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from planfreeze.errors import HomeMissing
from planfreeze.settings import store_path, toolchain_cache, user_cache

from .users import AS_STRANGER, BUILD, RESOLVE, STRANGER, as_root

WRITES = re.compile(
    r"\b(creat|mkdir|mkdirat|unlink|unlinkat|rmdir|rename|renameat2?|link|linkat|symlink|symlinkat|chmod|fchmod|fchmodat2?"
    r"|chown|fchown|lchown|fchownat|utime|utimes|utimensat|futimesat|truncate|ftruncate|flock|mknod|mknodat|setxattr"
    r"|fsetxattr|write|pwrite64|fallocate|fsync)\("
)
OPENS_TO_WRITE = re.compile(r"O_(WRONLY|RDWR|CREAT|TRUNC|APPEND)")
LOCKS = re.compile(r"fcntl\(.*F_(OFD_)?SETLK")


@as_root
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_a_session_of_another_user_on_a_read_only_mount_makes_no_call_that_changes_anything(
    built, mount, open_place: Path, run, root_of: str
) -> None:
    built.copy(open_place / "store")
    place = mount("--bind", str(open_place / "store"))
    subprocess.run(["mount", "-o", "remount,ro,bind", str(place)], check=True)
    (open_place / "traces").mkdir()
    (open_place / "traces").chmod(0o777)
    trace = open_place / "traces" / "trace"
    traced = ("strace", "-f", "-y", "-e", "trace=%file,%desc", "-o", str(trace))
    assert run(RESOLVE, place, *AS_STRANGER, *traced, HOME="") == [2, [root_of], 0]
    reads = [line for line in trace.read_text(errors="replace").splitlines() if str(place) in line and "RDONLY" in line]
    assert len(reads) >= 7, "format, name, plan, two records, two cubins"
    assert find_changes(trace, place) == []
    other = open_place / "other"
    assert run(BUILD, other, *traced) == [2, [root_of], []]
    assert {"openat", "mkdir", "write", "linkat", "unlink", "rename", "flock", "fsync"} <= set(
        find_changes(trace, other)
    )


def find_changes(trace: Path, place: Path) -> list[str]:
    """Return the names of the calls in a trace that change something below a place, or lock it."""
    calls = [line for line in trace.read_text(errors="replace").splitlines() if str(place) in line]
    changes = [line for line in calls if WRITES.search(line) or OPENS_TO_WRITE.search(line) or LOCKS.search(line)]
    return [re.split(r"[\s(]+", line)[1] for line in changes]


def test_a_session_asks_the_system_for_nothing_that_changes_anything(built, run, root_of: str, tmp_path: Path) -> None:
    built.copy(tmp_path / "store")
    watched = f"""
import os, sys
def watch(event, arguments):
    # Everything Python asks the system for by a path: opening to write, and what is no opening, listing or stat.
    asked = event.startswith(("os.", "shutil.", "fcntl.")) and event not in ("os.listdir", "os.scandir", "os.putenv")
    writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & {os.O_WRONLY | os.O_RDWR | os.O_CREAT}
    if (asked or writes) and sys.argv[1] in repr(arguments):
        raise AssertionError((event, arguments))
sys.addaudithook(watch)
"""
    assert run(watched + RESOLVE, tmp_path / "store") == [2, [root_of], 0]
    with pytest.raises(AssertionError, match="mkdir"):
        run(watched + BUILD, tmp_path / "other")


@as_root
def test_a_nameless_user_without_a_home_builds_where_a_store_is_named(open_place: Path, run, root_of: str) -> None:
    (open_place / "shared").mkdir()
    os.chown(open_place / "shared", STRANGER, STRANGER)
    (open_place / "tmp").mkdir()
    (open_place / "tmp").chmod(0o1777)
    nothing = {"HOME": "", "XDG_CACHE_HOME": "", "TMPDIR": str(open_place / "tmp")}
    store = open_place / "shared" / "store"
    assert run(BUILD, store, *AS_STRANGER, **nothing) == [2, [root_of], []]
    assert run(RESOLVE, store, *AS_STRANGER, **nothing) == [2, [root_of], 0]
    assert {path.stat().st_uid for path in store.rglob("*")} == {STRANGER}
    assert list((open_place / "tmp").iterdir()) == []


def test_without_a_home_the_default_store_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> Path:
        raise RuntimeError("no home")

    for answer in (refuse, lambda name: Path("~/.cache") / name):
        monkeypatch.setattr("platformdirs.user_cache_path", answer)
        for call in (user_cache, lambda: store_path(type("Settings", (), {"store": None}))):
            with pytest.raises(HomeMissing, match=f"user {os.geteuid()} has no home.*--store DIR") as caught:
                call()
            assert caught.value.exit_code == 6
        assert not toolchain_cache().parent.is_dir()
