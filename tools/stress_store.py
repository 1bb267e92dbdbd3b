"""Builders and sessions at one store while they are killed, stopped and their clocks jump; then nothing may be lost.

python tools/stress_store.py --kills 300 [--builders 4] [--sessions 2] [--collectors 0] [--seconds 600] [--seed 1]
                             [--store DIR]

Programs are those of the family topk_sum, compiled once for real and then stamped (tools/stub_compiler.py). Every
moment a new plan of eight of them is asked for; builders take one of the latest and build it. Sessions open plans and
resolve them, as a session does before it loads. Prints one JSON object. The exit status is 1 when something was lost,
damaged or left locked, a session met anything but a whole plan or none, or a builder failed.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct
from stress_crew import Crew, fork
from stub_compiler import stub_worker

from planfreeze import errors, keyed, slots
from planfreeze.builds import build_plans
from planfreeze.cache.lock import lock_key
from planfreeze.cache.store import Store
from planfreeze.family import family_of
from planfreeze.kernels.moe.topk_sum import TopkSumPayload
from planfreeze.key import dialect_of, source_roots
from planfreeze.plans import Plan
from planfreeze.resolve import PlanReference, find_plan, resolve_plan
from planfreeze.sources import read_sources
from planfreeze.target import target
from planfreeze.toolchain import find_toolchain
from planfreeze.workers import Task, Worker

ARCH = "sm_90a"
PROGRAMS = 8  # of a plan
LATEST = 3  # plans that are built at a time
PLAN_S = 0.4  # from one new plan to the next
COMPILE_S = 0.02  # the longest that a compile is made to take
YEARS_S = 10 * 365 * 86_400


class Stress(Struct, frozen=True, kw_only=True):
    """What all processes of a run share: the store, a journal outside of it, and the number of the newest plan.

    The number has no lock, which a killed process could keep.
    """

    store: Path
    journal: Path
    newest: Any
    is_collected: bool

    def note(self, event: str, what: str) -> None:
        """Add one line to the journal in one step; a kill loses no line that was noted."""
        handle = os.open(self.journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(handle, f"{event} {what}\n".encode())
        os.close(handle)

    def read(self) -> Counter[tuple[str, str]]:
        """Count the journal's lines."""
        lines = self.journal.read_text().splitlines() if self.journal.exists() else []
        return Counter((event, what) for event, _, what in (line.partition(" ") for line in lines))


def declare_plan(number: int) -> Plan:
    """Return a plan whose programs no other number has, but for one that it shares with the next."""
    first = number * (PROGRAMS - 1)
    payloads = [TopkSumPayload(hidden=256 * (1 + n // 32), top_k=1 + n % 32) for n in range(first, first + PROGRAMS)]
    return Plan(model=f"stress-{number}", tp=1, target=target(ARCH), payloads=tuple(payloads))


def prepare(stress: Stress) -> None:
    """Compile one program for real, and let this process and its children stamp copies of it from now on."""
    payload, place = TopkSumPayload(hidden=256, top_k=1), target(ARCH)
    family = family_of(payload)
    definition = family.define(payload, place)
    with Worker(place) as worker:
        sources = read_sources(source_roots(family, definition))
        base = worker.compile(Task(family.reference, payload, place, sources))
    known = find_toolchain(dialect_of(definition), stress.journal.parent)
    keyed.find_toolchain = lambda dialect, cache: known  # asked for each plan, and it looks at thousands of files
    slots.Worker = stub_worker({family.reference: base}, lambda task: compile_slowly(stress, task))


def compile_slowly(stress: Stress, task: Task) -> None:
    """Note that a program is compiled, and take some time over it."""
    stress.note("started", task.payload.digest)
    time.sleep(random.uniform(0, COMPILE_S))


def build(stress: Stress, number: int) -> None:
    """Build one plan; note what was compiled, and anything that failed."""
    report = build_plans(
        [declare_plan(number)], Store.open(stress.store, writable=True), jobs=2, toolchains=stress.journal.parent
    )
    for outcome in report.outcomes:
        if outcome.status == "compiled":
            stress.note("compiled", outcome.program.key.digest)
        if outcome.status == "failed":
            stress.note("failure", outcome.reason.replace("\n", " "))
    if report.plans:
        stress.note("named", str(number))


def build_for_ever(stress: Stress) -> None:
    """Build the latest plans again and again, under a clock that jumps."""
    true_time = time.time
    while True:
        jump_s = random.uniform(-YEARS_S, YEARS_S)
        time.time = lambda jump_s=jump_s: true_time() + jump_s
        newest = stress.newest.value
        build(stress, random.randint(max(0, newest - LATEST + 1), newest))


def open_for_ever(stress: Stress) -> None:
    """Resolve plans, as sessions do: each is whole or not there."""
    while True:
        name = f"stress-{random.randint(0, stress.newest.value)}-tp1-{ARCH}"
        try:
            store = Store.open(stress.store)
            found = find_plan(store, PlanReference.parse(name))
        except (errors.StoreMissing, errors.PlanMissing):
            continue
        resolve_plan(found, store).check()
        stress.note("opened", name)


def collect_for_ever(stress: Stress) -> None:
    """Remove what no plan names, at once and without the grace that builders have otherwise."""
    from planfreeze.collection import collect

    while True:
        collect(Store.open(stress.store, writable=True), max_age_s=0.0)
        stress.note("collected", "store")


def disturb_clock(store: Path) -> bool:
    """Give a temporary file a time years from now or ago, as another host's clock would; tell whether there was one."""
    try:
        path = random.choice(list((store / "tmp").iterdir()))
        os.utime(path, (0, time.time() + random.uniform(-YEARS_S, YEARS_S)))
    except (FileNotFoundError, IndexError):
        return False
    return True


def run(stress: Stress, options: argparse.Namespace) -> Counter[str]:
    """Strike until the kills or the time are reached; count what was done."""
    works = (
        (build_for_ever, options.builders),
        (open_for_ever, options.sessions),
        (collect_for_ever, options.collectors),
    )
    fail = partial(stress.note, "failure")
    crews = [Crew(partial(work, stress), fail, count) for work, count in works if count]
    weights = [len(crew.members) for crew in crews]
    done: Counter[str] = Counter()
    started = time.monotonic()
    try:
        while done["kills"] < options.kills and time.monotonic() - started < options.seconds:
            stress.newest.value = int((time.monotonic() - started) / PLAN_S)
            time.sleep(random.uniform(0, 0.1))
            done[random.choices(crews, weights)[0].strike()] += 1
            done["file times changed"] += disturb_clock(stress.store)
    finally:
        for crew in crews:
            crew.end()
    done["seconds"] = round(time.monotonic() - started)
    return done


def count_left_locked(store: Store) -> int:
    """Count the stripes that somebody still holds."""
    held = 0
    for stripe in range(256):
        try:
            with lock_key(store.layout, f"{stripe:02x}" + "0" * 62, 0):
                pass
        except errors.KeyLocked:
            held += 1
    return held


def examine(stress: Stress) -> dict[str, int]:
    """Read everything and count what is not as it was published; then repair by building and count what is left."""
    journal = stress.read()
    store = Store.open(stress.store, writable=True)
    compiled = [key for event, key in journal if event == "compiled"]
    named = {int(number) for event, number in journal if event == "named"}
    # A collector takes what no plan names; without one every program stays.
    lost = [] if stress.is_collected else [key for key in compiled if not store.has_record(key)]
    refs = store.list_refs()
    lost += [f"stress-{number}" for number in named if f"stress-{number}-tp1-{ARCH}" not in refs]
    for kind, read in (("blob", store.get_blob), ("record", store.get_record), ("plan", store.get_plan)):
        for entry in store.entries(kind):
            read(entry.name)  # raises what is wrong
    for name in refs:
        lost += resolve_plan(find_plan(store, PlanReference.parse(name)), store).missing
    whole = {kind: len(list(store.entries(kind))) for kind in ("record", "plan")}
    left_locked = count_left_locked(store)
    for number in range(stress.newest.value + 1):
        build(stress, number)
    store = Store.open(stress.store, writable=True)
    for name in store.list_refs():
        resolve_plan(find_plan(store, PlanReference.parse(name)), store).check()
    count = Counter[str]()
    for (event, _), times in journal.items():
        count[event] += times
    return {
        "programs": whole["record"],
        "plans": whole["plan"],
        "compiles begun": count["started"],
        "compiled twice": sum(times > 1 for (event, _), times in journal.items() if event == "compiled"),
        "plans opened": count["opened"],
        "collections": count["collected"],
        "losses": len(lost),
        "left locked": left_locked,
        "left temporaries": len(list(store.layout.temporaries.iterdir())),
        "quarantined": len(list(store.layout.quarantine.iterdir())),
        "failures": sum(event == "failure" for event, _ in stress.read()),
    }


def main() -> int:
    """Run, examine, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name, default in {"kills": 300, "builders": 4, "sessions": 2, "collectors": 0, "seed": 1}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--seconds", type=float, default=600.0, help="Longest time, whatever the kills.")
    parser.add_argument("--store", type=Path, help="A folder that is not there yet. Default: a temporary one.")
    options = parser.parse_args()
    random.seed(options.seed)
    with tempfile.TemporaryDirectory(prefix="planfreeze-stress-") as folder:
        stress = Stress(
            store=options.store or Path(folder, "store"),
            journal=Path(folder, "journal"),
            newest=fork.RawValue("i", 0),
            is_collected=options.collectors > 0,
        )
        prepare(stress)
        done = run(stress, options)
        result = {"seed": options.seed, **vars(options), **done, **examine(stress)}
        for event, what in stress.read():
            if event == "failure":
                print(f"failure: {what}", file=sys.stderr)  # noqa: T201
    result.pop("store")
    print(json.dumps(result, indent=1))  # noqa: T201
    zeros = ["losses", "left locked", "left temporaries", "quarantined", "failures"]
    if not options.collectors:
        zeros.append("compiled twice")  # what a collector takes from a plan without a name is compiled again
    has_worked = result["programs"] and result["plans opened"]
    return int(not has_worked or any(result[name] for name in zeros))


if __name__ == "__main__":
    sys.exit(main())
