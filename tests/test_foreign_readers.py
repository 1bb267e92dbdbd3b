"""Stores and packs read by others: no pickle, other Pythons, every rank, and inner caches of any state."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import planfreeze
from planfreeze.cache.store import Store
from planfreeze.packs import pack_plans
from planfreeze.verification import verify


def test_nothing_that_is_stored_or_packed_is_a_pickle(store, frozen, tmp_path):
    """No stored file begins like a pickle, and nothing of planfreeze but the talk to its own workers can read one."""
    pack = pack_plans([frozen], store, tmp_path / "a.pfz").path
    files = [pack, *(path for path in store.path.rglob("*") if path.is_file())]
    assert len(files) > 8
    for path in files:
        assert not path.read_bytes().startswith((b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")), path
    root = Path(planfreeze.__file__).parent
    readers = {
        path.name
        for folder in (root, root / "cache")
        for path in folder.glob("*.py")
        if {"pickle", "marshal", "shelve", "dill"} & set(path.read_text().replace(".", " ").split())
    }
    assert readers <= {"workers.py"}


def other_pythons() -> list[str]:
    """Interpreters of other minors, here, that have what reading takes."""
    named = [shutil.which(f"python3.{minor}") for minor in (11, 12, 13, 14) if sys.version_info[1] != minor]
    probe = ["-c", "import msgspec, platformdirs"]
    return [path for path in named if path and not subprocess.run([path, *probe], capture_output=True).returncode]


@pytest.mark.skipif(not other_pythons(), reason="no other Python with msgspec and platformdirs is here")
def test_another_python_reads_what_this_one_stored(store, frozen, tmp_path, interpreter):
    pack = pack_plans([frozen], store, tmp_path / "a.pfz").path
    script = """
        import sys
        from planfreeze.cache.readable import open_readable
        from planfreeze.verification import verify
        for path in sys.argv[1:]:
            assert verify(open_readable(path)).problems == ()
        """
    for executable in other_pythons():
        interpreter.run(script, str(store.path), str(pack), executable=executable)


def test_every_rank_accepts_every_program(store, frozen, tmp_path, interpreter):
    pack = pack_plans([frozen], store, tmp_path / "a.pfz").path
    script = """
        import sys
        from planfreeze.cache.readable import open_readable
        from planfreeze.resolve import find_plans, resolve_plan
        for path in sys.argv[1:]:
            source = open_readable(path)
            (plan,) = find_plans(source, None)
            print(len(resolve_plan(plan, source).check()))
        """
    for rank in ("0", "1"):
        accepted = interpreter.run(script, str(store.path), str(pack), RANK=rank, LOCAL_RANK=rank, WORLD_SIZE="2")
        assert accepted.split() == [str(len(frozen.entries))] * 2


def test_inner_caches_that_are_warm_damaged_or_nowhere_change_no_entry(built, toys, frozen, interpreter, tmp_path):
    """Compilers keep caches of their own. A build neither reads them nor needs them."""
    script = """
        import sys
        from pathlib import Path
        from planfreeze.builds import build_plans
        from planfreeze.cache.store import Store
        from planfreeze.plans import Plan
        from planfreeze.target import target
        from toys.families import AddPayload, CopyPayload
        store = Store.open(sys.argv[1], writable=True)
        plan = Plan(model="toys", tp=1, target=target("sm_90a"), payloads=(AddPayload(block=64), CopyPayload()))
        report = build_plans([plan], store, jobs=1, toolchains=Path(sys.argv[2]))
        print(report.plans[0].root)
        """
    warm = tmp_path / "warm"
    fill = """
        import sys, triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource
        from toys.add_triton import add_kernel
        types = {"source": "*i32", "out": "*i32", "count": "i32", "block": "constexpr"}
        triton.compile(ASTSource(add_kernel, types, {"block": 64}), target=GPUTarget("cuda", 90, 32))
        """
    interpreter.run(fill, TRITON_CACHE_DIR=str(warm))
    inner = [path for path in warm.rglob("*") if path.is_file()]
    assert inner
    for path in inner[::2]:
        path.write_bytes(b"damaged")
    root = interpreter.run(
        script,
        str(tmp_path / "store"),
        str(tmp_path / "toolchains"),
        TRITON_CACHE_DIR=str(warm),
        TRITON_HOME="/proc/nowhere",
        CUTE_DSL_CACHE_DIR="/proc/nowhere",
    )
    assert root.strip() == frozen.root
    assert verify(Store.open(tmp_path / "store")).problems == ()
