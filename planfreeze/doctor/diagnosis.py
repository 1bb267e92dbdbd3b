"""Diagnoses: whether frozen serving would work here, what a guard watches here, what still needs a compiler."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal

from msgspec import Struct

from planfreeze import errors
from planfreeze.cache.readable import open_readable
from planfreeze.doctor.knobs import find_differing, find_hindering
from planfreeze.doctor.machine import Machine, find_machine
from planfreeze.frozen_plans import FrozenPlan
from planfreeze.guard.unseen import UNSEEN, Unseen
from planfreeze.key import COMPILE_ENVIRONMENT
from planfreeze.notes import read_note
from planfreeze.resolve import PlanReference, check_kernels, find_plan
from planfreeze.runs.guarded import make_environment
from planfreeze.runs.questions import ask_device, ask_driver_library, ask_guard, ask_tensor_checks
from planfreeze.settings import read_settings
from planfreeze.target import ARCHS

__all__ = ["Diagnosis", "Finding", "diagnose"]

LACKING = 6


class Finding(Struct, frozen=True, kw_only=True):
    """Something worth knowing.

    Parameters
    ----------
    level : "problem" or "note"
        Whether it keeps frozen serving from working here.
    what : str
        What was found, and what follows from it.
    advice : str
        What to do; empty where nothing needs to be done.
    exit_code : int
        Of a problem: what a command that meets it ends with.
    """

    level: Literal["problem", "note"]
    what: str
    advice: str = ""
    exit_code: int = 1


class Diagnosis(Struct, frozen=True, kw_only=True):
    """What was found here.

    Parameters
    ----------
    machine : Machine
        Versions, driver, devices, tools.
    roads : mapping
        Road to "awake", "asleep" or "not installed", proven in a child process.
    unseen : tuple of Unseen
        Roads that no guard can watch.
    store : str
        The store that was looked into.
    plans : tuple of str
        Its frozen plans, pinned by their root digests.
    findings : tuple of Finding
        Problems first.
    """

    machine: Machine
    roads: Mapping[str, str]
    unseen: tuple[Unseen, ...]
    store: str
    plans: tuple[str, ...]
    findings: tuple[Finding, ...]

    @property
    def problems(self) -> int:
        """How many findings keep frozen serving from working here."""
        return sum(finding.level == "problem" for finding in self.findings)

    @property
    def status(self) -> int:
        """0 when frozen serving would work here; 6 when the machine lacks something and nothing else is wrong; 1."""
        codes = {finding.exit_code for finding in self.findings if finding.level == "problem"}
        if not codes:
            return 0
        return LACKING if codes == {LACKING} else 1


def diagnose(store: Path, *, plans: tuple[str, ...] = (), is_store_named: bool, is_trusted: bool) -> Diagnosis:
    """Look at this machine, its guard, its environment and a store. Never raises because something is odd.

    Parameters
    ----------
    store : Path
        The store to look into.
    plans : tuple of str
        Frozen plans that have to be there; none given: all that the store has.
    is_store_named : bool
        Whether the store was asked for: one in its default place may be missing.
    is_trusted : bool
        Take unpinned plans from the store whoever owns it.
    """
    environ = make_environment("raise", None)
    machine = find_machine()
    roads: dict[str, str] = {}
    frozen: list[FrozenPlan] = []
    made_with: dict[str, Mapping[str, str]] = dict(COMPILE_ENVIRONMENT)
    checks: tuple[Callable[[], Iterable[Finding]], ...] = (
        lambda: check_device(machine),
        lambda: check_guard(environ, roads),
        lambda: check_store(store, plans, frozen, made_with, is_named=is_store_named, is_trusted=is_trusted),
        lambda: check_environment(environ, made_with),
        lambda: check_launches(machine),
        lambda: check_compilers(machine),
    )
    findings = [finding for check in checks for finding in guarded(check)]
    return Diagnosis(
        machine=machine,
        roads=roads,
        unseen=UNSEEN,
        store=str(store),
        plans=tuple(f"{plan.name}@sha256:{plan.root}" for plan in frozen),
        findings=tuple(sorted(findings, key=lambda finding: finding.level != "problem")),
    )


def guarded(check: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """Run a check; one that fails is a finding itself."""
    try:
        return list(check())
    except errors.PlanfreezeError as error:
        return [problem_of(error)]
    except Exception as error:  # noqa: BLE001 - an odd machine is what a diagnosis is for
        return [Finding(level="problem", what=f"a check could not be made: {type(error).__name__}: {error}")]


def problem_of(error: errors.PlanfreezeError) -> Finding:
    """Return an error as a problem; its message says what to do."""
    return Finding(level="problem", what=str(error), exit_code=error.exit_code)


def check_device(machine: Machine) -> Iterator[Finding]:
    """Check that programs could be loaded and launched here."""
    lacking = [name for name in ("torch", "cuda-core") if not machine.has(name)]
    if lacking:
        yield Finding(
            level="problem",
            what=f"{' and '.join(lacking)} not installed: a session launches through them",
            advice='pip install "planfreeze[serve]"',
            exit_code=LACKING,
        )
    if not machine.gpus:
        yield Finding(
            level="problem",
            what="no CUDA device: a session has nowhere to load programs (plan, build and replay need none)",
            advice="run this where you serve; in a container, give it the devices and the driver",
            exit_code=LACKING,
        )
        return
    known = {target.capability for target in ARCHS.values()}
    for gpu in machine.gpus:
        if gpu.capability not in known:
            yield Finding(
                level="problem",
                what=f"{gpu.name} has compute capability {gpu.capability}: planfreeze compiles for {', '.join(ARCHS)}",
                exit_code=LACKING,
            )
    if not lacking:
        message, exit_code = ask_device()
        if message:
            yield Finding(level="problem", what=message, exit_code=exit_code)


def check_guard(environ: Mapping[str, str], roads: dict[str, str]) -> Iterator[Finding]:
    """Prove the roads in a child process; put their states into ``roads``."""
    roads.update(ask_guard(environ))
    asleep = [road for road, state in roads.items() if state == "asleep"]
    if asleep:
        yield problem_of(errors.GuardAsleep(", ".join(asleep), ""))


def check_store(
    path: Path,
    wanted: tuple[str, ...],
    frozen: list[FrozenPlan],
    made_with: dict[str, Mapping[str, str]],
    *,
    is_named: bool,
    is_trusted: bool,
) -> Iterator[Finding]:
    """Check that a store can be read and trusted, and that the kernels here are those of its plans."""
    try:
        store = open_readable(path, is_trusted=is_trusted, trusted_keys=read_settings().trusted_keys)
    except errors.StoreMissing as error:
        level: Literal["problem", "note"] = "problem" if is_named or wanted else "note"
        yield Finding(level=level, what=str(error), exit_code=error.exit_code)
        return
    references = wanted or tuple(store.list_refs())
    if not references:
        yield Finding(level="note", what=f"{path} holds no frozen plan", advice="planfreeze build --model MODEL")
    for reference in references:
        try:
            plan = find_plan(store, PlanReference.parse(reference))
            frozen.append(plan)
            check_kernels(plan)
        except errors.PlanfreezeError as error:
            yield Finding(level="problem", what=f"{reference}: {error}", exit_code=error.exit_code)
            continue
        for entry in plan.entries:
            note = read_note(entry.key, store)
            made_with.update({note.dialect: note.environment} if note.environment else {})


def check_environment(environ: Mapping[str, str], made_with: Mapping[str, Mapping[str, str]]) -> Iterator[Finding]:
    """Check variables that change what compilers do."""
    hindering, costly = find_hindering(environ)
    for setting in hindering:
        yield Finding(level="problem", what=f"{setting.name}={setting.value}: {setting.effect}", advice=setting.advice)
    for setting in (*find_differing(environ, made_with), *costly):
        yield Finding(level="note", what=f"{setting.name}={setting.value}: {setting.effect}", advice=setting.advice)


def check_launches(machine: Machine) -> Iterator[Finding]:
    """Say how launches hold tensors against what their kernels take."""
    if not machine.has("torch"):
        return
    obstacle = ask_tensor_checks()
    if obstacle:
        yield Finding(
            level="note",
            what=f"checked launches look at tensors one by one, which takes several times as long: {obstacle}",
            advice="install planfreeze from a wheel, or where there is a C compiler, beside torch 2.10 or later",
        )
    else:
        yield Finding(
            level="note", what="checked launches take the tensors of a call in one go, by planfreeze._tensors"
        )


def check_compilers(machine: Machine) -> Iterator[Finding]:
    """Say what installed here still calls a compiler when it is used, beside planned programs."""
    tools = dict(machine.tools)
    c_compiler = tools.get("gcc") or tools.get("clang")
    there = f"{c_compiler} is there" if c_compiler else "there is none here"
    if machine.has("triton"):
        states = {
            "cached": "its cache holds the library it builds with a C compiler for the driver",
            "to be built": f"it builds a library for the driver with a C compiler at its first use; {there}",
            "unknown": f"it may build a library for the driver with a C compiler at its first use; {there}",
        }
        yield Finding(
            level="note",
            what=f"triton, launching by itself: {states[ask_driver_library()]}. Programs of a session need none",
        )
    if machine.has("torch"):
        ninja = f"ninja {'is there' if tools.get('ninja') else 'is not'}"
        nvcc = f"nvcc {'is there' if tools.get('nvcc') else 'is not'}"
        yield Finding(
            level="note",
            what=f"torch: torch.compile and torch.utils.cpp_extension call a C++ compiler, ninja and nvcc when used; "
            f"{there}, {ninja}, {nvcc}. Programs of a session need none",
        )
