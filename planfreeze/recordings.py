"""Recordings: which programs a run used, how often, and what autotuners chose. Files that people can read."""

import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from planfreeze import errors
from planfreeze.choices import Choice
from planfreeze.family import Family, load_family
from planfreeze.key import COMPILE_ENVIRONMENT
from planfreeze.payload import Field, Payload, freeze_lists
from planfreeze.plans import Plan
from planfreeze.target import Target

__all__ = [
    "RecordedProgram",
    "Recording",
    "Refusal",
    "check_writable",
    "merge_lines",
    "plan_recording",
    "read_recording",
]

MAGIC, RECORDING_FORMAT = "planfreeze recording", 1


class RecordedProgram(Struct, frozen=True, kw_only=True):
    """A program that a run launched, and how often: at least, where a process ended without running its exit code."""

    family: str
    payload: Payload
    launches: int


class Refusal(Struct, frozen=True, kw_only=True):
    """Something a run used that cannot be recorded."""

    kernel: str
    reason: str


class Recording(Struct, frozen=True, kw_only=True):
    """What a run used, sorted: two runs of the same thing differ in their counts alone.

    Parameters
    ----------
    archs : tuple of str
        Architectures of the devices it ran on.
    versions : tuple of (str, str)
        Compilers it used, by name.
    environment : tuple of (str, str)
        Variables of code generation that were set.
    source_roots : tuple of str
        Folders its kernels' modules were imported from, relative to the working directory of the run.
    unused : int
        Programs it compiled and launched to choose among, or not at all.
    """

    archs: tuple[str, ...]
    versions: tuple[tuple[str, str], ...]
    environment: tuple[tuple[str, str], ...]
    source_roots: tuple[str, ...]
    programs: tuple[RecordedProgram, ...]
    choices: tuple[Choice, ...]
    refused: tuple[Refusal, ...]
    unused: int

    def to_json(self) -> str:
        """Return the text of the file."""
        content = {
            "magic": MAGIC,
            "format": RECORDING_FORMAT,
            "archs": self.archs,
            "versions": dict(self.versions),
            "environment": dict(self.environment),
            "source_roots": self.source_roots,
            "programs": [
                {"family": p.family, "payload": p.payload.to_fields(), "launches": p.launches} for p in self.programs
            ],
            "choices": [choice_json(choice) for choice in self.choices],
            "refused": [{"kernel": r.kernel, "reason": r.reason} for r in self.refused],
            "unused": self.unused,
        }
        return json.dumps(content, indent=1) + "\n"

    def relocate(self, source_roots: tuple[str, ...]) -> "Recording":
        """Return the same recording with other folders of its kernels' modules."""
        return replace(self, source_roots=source_roots)

    def write(self, path: Path) -> None:
        """Write the file in one step.

        Raises
        ------
        RecordingUnwritable
            It cannot be written.
        """
        partial = partial_of(path)
        try:
            partial.write_text(self.to_json())
            partial.replace(path)
        except OSError as error:
            raise errors.RecordingUnwritable(str(path), str(error)) from error


def partial_of(path: Path) -> Path:
    """Return the file that a recording is written to before it takes its name."""
    return path.with_name(f".{path.name}.partial")


def check_writable(path: Path) -> None:
    """Find out before a run whether its recording can be written after it; what stands there stays.

    Raises
    ------
    RecordingUnwritable
        It cannot.
    """
    if path.is_dir():
        raise errors.RecordingUnwritable(str(path), "it is a directory")
    try:
        partial_of(path).touch()
        partial_of(path).unlink()
    except OSError as error:
        raise errors.RecordingUnwritable(str(path), str(error)) from error


def choice_json(choice: Choice) -> dict[str, Any]:
    """Return a choice as it stands in files."""
    return {"kernel": choice.kernel, "space": choice.space, "key": choice.key, "config": choice.config}


def read_choice(stated: Any) -> Choice:
    """Read a choice back."""
    key, config = freeze_lists(stated["key"]), freeze_lists(stated["config"])
    if not isinstance(key, tuple) or not isinstance(config, tuple):
        raise ValueError("the key or the configuration of a choice is no list")
    return Choice(kernel=str(stated["kernel"]), space=str(stated["space"]), key=key, config=pairs_of(config))


def pairs_of(fields: tuple[Field, ...]) -> tuple[tuple[str, Field], ...]:
    """Return fields that are pairs of a name and a value."""
    pairs = [pair for pair in fields if isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)]
    if len(pairs) != len(fields):
        raise ValueError("a configuration is not pairs of name and value")
    return tuple((str(name), value) for name, value in pairs)


def read_recording(path: Path) -> Recording:
    """Read a recording.

    Raises
    ------
    InvalidRecording
        It cannot be read, is none, is of a later format, or names a family or payload that is not known here.
    """
    try:
        content = json.loads(path.read_bytes())
        if content["magic"] != MAGIC or content["format"] != RECORDING_FORMAT:
            raise errors.InvalidRecording(str(path), "it is of another format")
        programs = tuple(read_program(program) for program in content["programs"])
        return Recording(
            archs=tuple(map(str, content["archs"])),
            versions=tuple((str(name), str(version)) for name, version in content["versions"].items()),
            environment=tuple((str(name), str(value)) for name, value in content["environment"].items()),
            source_roots=tuple(map(str, content["source_roots"])),
            programs=programs,
            choices=tuple(read_choice(choice) for choice in content["choices"]),
            refused=tuple(Refusal(kernel=str(r["kernel"]), reason=str(r["reason"])) for r in content["refused"]),
            unused=int(content["unused"]),
        )
    except errors.InvalidRecording:
        raise
    except OSError as error:
        raise errors.InvalidRecording(str(path), str(error)) from error
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
        errors.PlanfreezeError,
    ) as error:
        raise errors.InvalidRecording(str(path), f"{type(error).__name__}: {error}") from error


def read_program(stated: Any) -> RecordedProgram:
    """Read one program back."""
    family: Family = load_family(str(stated["family"]))
    payload = family.payload.from_fields(dict(stated["payload"]))
    payload.spell_fields()  # of fields that cannot be spelled nothing can be made
    return RecordedProgram(family=family.reference, payload=payload, launches=int(stated["launches"]))


def merge_lines(lines: Iterable[str]) -> Recording:
    """Make one recording of the lines that all processes of a run wrote; see ``planfreeze.recorders.tally``.

    A line that is no whole JSON is the last one of a process that was killed while it wrote.
    """
    launches: Counter[str] = Counter()
    found: dict[str, set[str]] = {
        name: set() for name in ("arch", "version", "environment", "root", "choice", "refused")
    }
    compiled: set[str] = set()
    for line in lines:
        try:
            kind, value, count = json.loads(line)
        except ValueError:
            continue
        text = json.dumps(value, sort_keys=True)
        if kind == "program":
            launches[text] += count
        elif kind == "compiled":
            compiled.add(text)
        else:
            found[kind].add(text)
    programs = [read_program({**json.loads(text), "launches": count}) for text, count in launches.items()]
    values = {name: [json.loads(text) for text in sorted(texts)] for name, texts in found.items()}
    return Recording(
        archs=tuple(values["arch"]),
        versions=tuple((name, version) for name, version in values["version"]),
        environment=tuple((name, value) for name, value in values["environment"]),
        source_roots=tuple(values["root"]),
        programs=tuple(sorted(programs, key=lambda program: (program.family, json.dumps(program.payload.to_fields())))),
        choices=tuple(read_choice(choice) for choice in values["choice"]),
        refused=tuple(Refusal(kernel=r["kernel"], reason=r["reason"]) for r in values["refused"]),
        unused=len(compiled),
    )


def plan_recording(recording: Recording, target: Target, *, path: Path) -> Plan:
    """Make the plan of a recording for a target, named by the recording's file.

    Raises
    ------
    InvalidRecording
        The run used no program that can be named, or the file's name cannot be a plan's.
    RecordedOtherwise
        The run was recorded under settings that change what programs compute.
    """
    if not recording.programs:
        raise errors.InvalidRecording(str(path), "it holds no program")
    name = path.stem
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", name) or re.search(r"-tp[0-9]+$", name):
        raise errors.InvalidRecording(str(path), f"{name!r} cannot be the name of its plan, or is that of a model's")
    pinned = {name: value for variables in COMPILE_ENVIRONMENT.values() for name, value in variables.items()}
    for variable, value in recording.environment:
        if pinned.get(variable) != value and variable != "TRITON_DISABLE_LINE_INFO":  # lines compute nothing
            raise errors.RecordedOtherwise(variable, value, pinned.get(variable, ""))
    return Plan(
        model=name,
        tp=0,
        target=target,
        payloads=tuple(program.payload for program in recording.programs),
        options=("--plan", path.name),
        choices=recording.choices,
    )
