"""Keys and bytes are the same in every process, after anything else, and in every order."""

import random
from concurrent.futures import ThreadPoolExecutor
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from planfreeze import slots
from planfreeze.builds import build_plans
from planfreeze.cache.store import Store
from planfreeze.compilers import CompiledProgram
from planfreeze.keyed import key_plan

PROCESSES = 20
ORDERS = 30
REAL_ORDERS = 3  # of which each compiles six programs

# Keys six programs after whatever the process was told to do first.
SCRIPT = """
import random, sys, threading
seed, folder = int(sys.argv[1]), sys.argv[2]
chance = random.Random(seed)
modules = ["planfreeze.keyed", "planfreeze.plans", "planfreeze.target", "toys.families", "planfreeze.models", "json"]
chance.shuffle(modules)
for name in modules:
    __import__(name)
kept = [object() for _ in range(seed * 997)]  # what is allocated later lies elsewhere
from pathlib import Path
from planfreeze.keyed import key_plan
from planfreeze.plans import Plan
from planfreeze.target import target
from toys.families import AddPayload, CopyPayload

def key(payloads, arch="sm_90a"):
    plan = Plan(model="toys", tp=1, target=target(arch), payloads=tuple(payloads))
    return [program.key.digest for program in key_plan(plan, Path(folder))]

payloads = [AddPayload(block=64, warps=w) for w in (1, 2, 4)] + [CopyPayload(mode=m) for m in ("plain", "a", "b")]
if seed % 4 == 1:  # unrelated programs, of the same families and of others
    key([AddPayload(block=block) for block in range(1, 40)], "sm_120a")
if seed == 2:
    import triton, triton.language
if seed == 3:
    import cutlass
order = payloads[:]
chance.shuffle(order)
found = {}
if seed % 3 == 0:  # one thread for each program
    threads = [threading.Thread(target=lambda p=p: found.update({p: key([p])[0]})) for p in order]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
else:
    found = dict(zip(order, key(order)))
for payload in payloads:
    print(found[payload], hex(id(kept)))
"""


@pytest.fixture(scope="module")
def six(toys: Any) -> tuple[Any, ...]:
    """Six related programs of both languages."""
    make, copy = toys.families.AddPayload, toys.families.CopyPayload
    return (*(make(block=64, warps=warps) for warps in (1, 2, 4)), *(copy(mode=mode) for mode in ("plain", "a", "b")))


def test_keys_are_the_same_in_twenty_processes(interpreter: Any, toys: Any, toolchains: Path, six: Any) -> None:
    def ask(seed: int) -> tuple[list[str], str]:
        hash_seed = "random" if seed % 5 == 4 else str(seed * 7919)
        said = interpreter.run(SCRIPT, str(seed), str(toolchains), PYTHONHASHSEED=hash_seed).split()
        return said[::2], said[1]

    with ThreadPoolExecutor(2) as threads:
        answers = list(threads.map(ask, range(PROCESSES)))
    expected = [program.key.digest for program in key_plan(toys.plan(*six), toolchains)]
    assert len(set(expected)) == len(six)
    assert {tuple(keys) for keys, _ in answers} == {tuple(expected)}
    assert len({address for _, address in answers}) > 1, "no two processes had the same addresses"


def build_in_order(toys: Any, toolchains: Path, place: Path, payloads: tuple[Any, ...]) -> dict[str, tuple[str, ...]]:
    """Build programs in an order into a fresh store: key, record and blob by payload."""
    store = Store.open(place, writable=True)
    report = build_plans([toys.plan(*payloads)], store, jobs=1, toolchains=toolchains)
    assert report.count("compiled") == len(payloads), [o.reason for o in report.outcomes if o.reason]
    (frozen,) = report.plans
    return {repr(entry.fields): (entry.key, entry.record, entry.blob) for entry in frozen.entries}


def shuffled(payloads: tuple[Any, ...], seed: int) -> tuple[Any, ...]:
    """Payloads in a random order that is the same in every run."""
    return tuple(random.Random(seed).sample(payloads, len(payloads)))


def test_bytes_do_not_depend_on_the_order_of_a_build(toys: Any, toolchains: Path, tmp_path: Path, six: Any) -> None:
    orders = [six, *(shuffled(six, seed) for seed in range(1, REAL_ORDERS))]
    assert len(set(orders)) == len(orders)
    first, *others = (build_in_order(toys, toolchains, tmp_path / str(n), order) for n, order in enumerate(orders))
    assert all(other == first for other in others)


def load_stub_compiler() -> ModuleType:
    """Load the compile process that compiles nothing: the tools are no package."""
    spec = spec_from_file_location("stub_compiler", Path(__file__).parents[2] / "tools" / "stub_compiler.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_entries_do_not_depend_on_the_order_of_a_build(
    toys: Any, toolchains: Path, tmp_path: Path, built: Any, six: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bases = {
        outcome.record.family: CompiledProgram(
            cubin=built.store.get_blob(outcome.record.blob), launch=outcome.record.launch
        )
        for outcome in built.report.outcomes
    }
    compiled: list[str] = []
    worker = load_stub_compiler().stub_worker(bases, lambda task: compiled.append(task.payload.digest))
    monkeypatch.setattr(slots, "Worker", worker)
    entries, orders = [], []
    for number in range(ORDERS):
        order = shuffled(six, number)
        entries.append(build_in_order(toys, toolchains, tmp_path / str(number), order))
        orders.append(tuple(compiled))
        compiled.clear()
    assert all(other == entries[0] for other in entries)
    assert len(set(orders)) > ORDERS // 2
