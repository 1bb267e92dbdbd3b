"""Any file system and any user: real kernels are built, moved, and resolved where little is allowed."""

import errno
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from textwrap import dedent

import pytest

from planfreeze.builds import build_plans
from planfreeze.cache.store import Store
from planfreeze.errors import HomeMissing, StoreUnusable
from planfreeze.plans import Plan
from planfreeze.resolve import resolve_plan
from planfreeze.settings import store_path, toolchain_cache, user_cache
from planfreeze.target import target

ROOT = Path(__file__).resolve().parents[2]
STRANGER = 54321  # a user without a name
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting and becoming another user take root")
# Another user who may read everything, so that the interpreter and the sources need no place of their own.
AS_STRANGER = (
    *("setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups"),
    *("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"),
)

BUILD = """
import json, sys
from pathlib import Path
from planfreeze.builds import build_plans
from planfreeze.cache.store import Store
from planfreeze.plans import Plan
from planfreeze.settings import toolchain_cache
from planfreeze.target import target
from {package}.families import AddPayload, CopyPayload

plan = Plan(model="toys", tp=1, target=target("sm_90a"), payloads=(AddPayload(block=64), CopyPayload()))
report = build_plans([plan], Store.open(sys.argv[1], writable=True), jobs=1, toolchains=toolchain_cache())
reasons = [outcome.reason for outcome in report.outcomes if outcome.reason]
print(json.dumps([report.count("compiled"), [plan.root for plan in report.plans], reasons]))
"""

RESOLVE = """
import json, sys
from planfreeze.cache.store import Store
from planfreeze.replays import check_replays, replay_plan
from planfreeze.resolve import PlanReference, find_plan

store = Store.open(sys.argv[1], is_trusted=True)
plan = find_plan(store, PlanReference.parse("toys-tp1-sm_90a"))
replay = replay_plan(plan, store)
check_replays([replay])
print(json.dumps([len(replay.resolution.programs), [plan.root], replay.attempts]))
"""


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A folder every user can reach (pytest's own is private)."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def mount(open_place: Path) -> Iterator[Callable[..., Path]]:
    """Mount something below the open place until the test ends; skipped only where the kernel refuses."""
    mounted: list[Path] = []

    def call(*arguments: str) -> Path:
        place = open_place / f"mount{len(mounted)}"
        place.mkdir()
        done = subprocess.run(["mount", *arguments, str(place)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"the kernel refuses to mount: {done.stderr.strip()}")
        mounted.append(place)
        return place

    yield call
    for place in reversed(mounted):
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.fixture
def run(toys, interpreter) -> Callable[..., list[object]]:
    """Run a script in a fresh interpreter, perhaps as somebody else, and return what it prints as JSON."""

    def call(script: str, path: Path, *prefix: str, package: str = "toys", **extra: str) -> list[object]:
        environment = {name: text for name, text in interpreter.environment(**extra).items() if text}
        done = subprocess.run(
            [*prefix, sys.executable, "-B", "-c", script.replace("{package}", package), str(path)],
            env=environment,
            cwd=interpreter.home,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]

    return call


@pytest.fixture
def root_of(built) -> str:
    """The root digest that every build of the two programs must come to."""
    return built.report.plans[0].root


def poison(path: Path) -> None:
    """Make everything below a folder wrong, and unreadable to those who would notice."""
    for item in path.rglob("*"):
        if item.is_file():
            item.write_bytes(b"poison")


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


@as_root
def test_a_store_and_temporary_files_may_lie_where_nothing_can_be_executed(mount, run, root_of: str) -> None:
    place = mount("-t", "tmpfs", "-o", "noexec,nosuid,nodev", "tmpfs")
    (place / "tmp").mkdir()
    assert run(BUILD, place / "store", TMPDIR=str(place / "tmp")) == [2, [root_of], []]
    assert run(RESOLVE, place / "store", TMPDIR=str(place / "tmp")) == [2, [root_of], 0]


@as_root
def test_a_store_in_the_lower_layer_of_an_overlay_is_read_repaired_and_added_to(
    built, toys, toolchains: Path, mount, root_of: str, run
) -> None:
    layers = mount("-t", "tmpfs", "tmpfs")
    baked = built.copy(layers / "lower" / "store")
    damaged = baked.layout.entry("record", built.keyed[0].key.digest)
    damaged.write_bytes(b"damaged in the image")
    before = {path: path.read_bytes() for path in baked.path.rglob("*") if path.is_file()}
    for name in ("upper", "work"):
        (layers / name).mkdir()
    options = ",".join(f"{name}dir={layers / name}" for name in ("lower", "upper", "work"))
    place = mount("-t", "overlay", "-o", options, "overlay") / "store"
    store = Store.open(place, writable=True)
    plan = toys.plan(*built.plan.payloads, toys.families.AddPayload(block=32))
    report = build_plans([plan], store, jobs=1, toolchains=toolchains)
    assert [outcome.status for outcome in report.outcomes] == ["compiled", "reused", "compiled"]
    assert len(list(store.layout.quarantine.iterdir())) == 2, "what was damaged, and the reason"
    assert build_plans([built.plan], store, jobs=1, toolchains=toolchains).count("reused") == 2
    assert run(RESOLVE, place) == [2, [root_of], 0]
    assert {path: path.read_bytes() for path in before} == before, "the lower layer is as it was"


@as_root
def test_a_link_to_another_file_system_may_be_turned_while_the_store_is_open(
    built, toys, toolchains: Path, mount, open_place: Path
) -> None:
    place = mount("-t", "tmpfs", "tmpfs")
    link = open_place / "link"
    link.symlink_to(place / "store")
    (place / "store").mkdir()
    store = Store.open(link, writable=True)
    assert build_plans([built.plan], store, jobs=1, toolchains=toolchains).count("compiled") == 2
    opened = Store.open(link)
    link.unlink()
    link.symlink_to(open_place / "elsewhere")
    (open_place / "elsewhere").mkdir()
    for entry in opened.entries("blob"):
        assert opened.get_blob(entry.name)
    assert len(list(opened.entries("record"))) == 2
    assert list((open_place / "elsewhere").iterdir()) == []


@as_root
@pytest.mark.parametrize(
    ("limit", "more"),
    [("size=1m", "size=9m"), ("size=9m,nr_inodes=120", "size=9m,nr_inodes=9999")],
    ids=["bytes", "inodes"],
)
def test_a_full_disk_is_named_with_store_key_and_size_and_more_room_finishes_the_build(
    shop, mount, limit: str, more: str
) -> None:
    place = mount("-t", "tmpfs", "-o", limit, "tmpfs")
    many = shop.many(60)
    with pytest.raises(StoreUnusable) as caught:
        many.build(place / "store")
    assert caught.value.exit_code == 6
    message = str(caught.value)
    assert os.strerror(errno.ENOSPC) in message and f"store {place / 'store'}" in message
    assert any(f"key {key}" in message for key in many.keys)
    assert caught.value.needed_bytes > 100 and f"{caught.value.needed_bytes} bytes needed" in message
    many.check_entries(place / "store")
    assert list((place / "store" / "tmp").iterdir()) == []
    stored = [key for key in many.keys if Store.open(place / "store").has_record(key)]
    assert 0 < len(stored) < 60
    subprocess.run(["mount", "-o", f"remount,{more}", str(place)], check=True)
    assert len(many.build_whole(place / "store")) == 60 - len(stored)


def test_a_program_takes_three_files_and_what_it_shares_is_bounded(shop, disk, place: Path) -> None:
    many = shop.many(300)
    with disk.Disk(root=place).mounted():
        many.build_whole(place / "store")
    files = [path.relative_to(place / "store") for path in (place / "store").rglob("*") if path.is_file()]
    of_programs = [path for path in files if path.parts[0] in ("objects", "records", "notes")]
    assert len(of_programs) == 3 * 300
    assert len(files) - len(of_programs) <= 4 + 2 * 256, (
        "format, tag, plan, name; a lock and its holder for each stripe"
    )


PACKAGE_FAMILIES = """
    from dataclasses import dataclass
    from typing import ClassVar
    from planfreeze.family import Definition, TritonSource, family, pointer, scalar
    from planfreeze.payload import Payload

    @dataclass(frozen=True, slots=True, kw_only=True, eq=False)
    class NamePayload(Payload):
        family_name: ClassVar[str] = "NAME_name"
        which: int

    @family(NamePayload, version=1)
    def name(payload, target):
        return Definition(
            arguments=(
                pointer("source", "i32", lambda scalars: scalars["count"]),
                pointer("out", "i32", lambda scalars: scalars["count"]),
                scalar("count"),
            ),
            source=TritonSource(
                kernel=f"NAME.add_triton:{LONG[payload.which]}", constants=(("block", 64),), num_warps=1
            ),
            grid=lambda scalars, resident_blocks: (1, 1, 1),
        )
"""

NAMES = {
    "words beyond ASCII": "störe 日本語 with spaces",
    "a long path": "/".join(["d" * 200] * 4),
    "quotes and signs": 'it\'s $HOME; "rm" -rf `x` %s \n',
}


def test_a_path_that_is_too_long_is_refused_by_name(tmp_path: Path) -> None:
    for path in (tmp_path / ("d" * 300), tmp_path.joinpath(*["d" * 200] * 30)):
        for is_writable in (True, False):
            with pytest.raises(StoreUnusable, match="too long"):
                Store.open(path, writable=is_writable)


LONG = {"letters": "k" * 300, "one": "k" * 200 + "one", "two": "k" * 200 + "two", "three": "\u6f22" * 120}


def test_kernels_of_any_name_are_built_and_told_apart(make_package, toolchains: Path, tmp_path: Path) -> None:
    kernel = """
        @triton.jit
        def {name}(source, out, count, block: tl.constexpr):
            offsets = tl.program_id(0) * block + tl.arange(0, block)
            tl.store(out + offsets, tl.load(source + offsets, mask=offsets < count) + {amount}, mask=offsets < count)
    """
    kernels = "".join(kernel.format(name=name, amount=amount) for amount, name in enumerate(LONG.values()))
    families = PACKAGE_FAMILIES.replace("LONG", repr(list(LONG.values())))
    head = "import triton\nimport triton.language as tl\n"
    make_package("long_names", add_triton=head + dedent(kernels), families=families)
    payload = import_module("long_names.families").NamePayload
    store = Store.open(tmp_path / "store", writable=True)

    def build(*which: int):
        payloads = tuple(payload(which=number) for number in which)
        plan = Plan(model="names", tp=1, target=target("sm_90a"), payloads=payloads)
        return build_plans([plan], store, jobs=1, toolchains=toolchains)

    report = build(0, 1, 2)
    assert [outcome.reason for outcome in report.outcomes] == [""] * 3
    records = [outcome.record for outcome in report.outcomes]
    assert len({record.blob for record in records}) == 3
    assert [record.symbol for record in records] == list(LONG.values())[:3]
    assert max(len(os.fsencode(path.name)) for path in store.path.rglob("*")) <= 255
    resolve_plan(report.plans[0], store).check()
    # Triton takes no names beyond ASCII for kernels: it refuses this one, and nothing else.
    (refused,) = build(3).outcomes
    assert refused.status == "failed"
    assert f"invalid function identifier: {LONG['three']}" in refused.reason


@pytest.mark.parametrize("name", NAMES)
def test_any_path_is_built_at_and_read_under_any_locale(make_package, run, tmp_path: Path, name: str) -> None:
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    modern = {"LC_ALL": "C.UTF-8"}
    path = tmp_path / NAMES[name] / "store"
    built_modern = run(BUILD, path, **modern)
    assert run(RESOLVE, path, **plain) == [2, built_modern[1], 0]
    built_plain = run(BUILD, path.with_name("other"), **plain)
    assert built_plain == built_modern
    assert run(RESOLVE, path.with_name("other"), **modern) == [2, built_modern[1], 0]


@pytest.mark.parametrize("is_copy", [True, False], ids=["copied", "moved"])
def test_a_store_elsewhere_never_looks_at_its_old_place(
    built, run, tmp_path: Path, root_of: str, is_copy: bool
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    built.copy(old)
    shutil.copytree(old, new) if is_copy else shutil.move(old, new)
    if not is_copy:
        shutil.copytree(new, old)
    poison(old)
    watched = f"""
import sys
def watch(event, arguments):
    assert {str(old)!r} not in repr(arguments), (event, arguments)
sys.addaudithook(watch)
"""
    assert run(watched + RESOLVE, new) == [2, [root_of], 0]
    assert run(watched + BUILD, new) == [0, [root_of], []]
    for path in new.rglob("*"):
        assert not path.is_file() or str(tmp_path).encode() not in path.read_bytes(), "no path is stored"
