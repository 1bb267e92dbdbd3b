"""Any path and any name: kernels, folders and locales of all kinds, and stores that are copied or moved."""

import os
import shutil
from importlib import import_module
from pathlib import Path
from textwrap import dedent

import pytest

from planfreeze.builds import build_plans
from planfreeze.cache.store import Store
from planfreeze.errors import StoreUnusable
from planfreeze.plans import Plan
from planfreeze.resolve import resolve_plan
from planfreeze.target import target

from .users import BUILD, RESOLVE


def poison(path: Path) -> None:
    """Make everything below a folder wrong, and unreadable to those who would notice."""
    for item in path.rglob("*"):
        if item.is_file():
            item.write_bytes(b"poison")


PACKAGE_FAMILIES = """
    from typing import ClassVar
    from planfreeze.family import Definition, TritonSource, family, pointer, scalar
    from planfreeze.payload import Payload

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
