"""Manners that every command has: examples that parse, JSON as documented, no noise, a word for every failure."""

import json
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer
from msgspec.structs import replace
from typer.testing import CliRunner

from planfreeze.builds import BuildReport
from planfreeze.cli import EXAMPLES, app
from planfreeze.doctor.diagnosis import Diagnosis, Finding
from planfreeze.doctor.machine import Gpu, Machine
from planfreeze.doctor.reports import diagnosis_json
from planfreeze.guard.unseen import UNSEEN
from planfreeze.models import catalog_names
from planfreeze.recordings import read_recording
from planfreeze.repairs import Repair
from planfreeze.reports import build_json, recording_json
from planfreeze.store_reports import verification_json
from planfreeze.target import ARCHS
from planfreeze.verification import Verification

ROOT = Path(__file__).resolve().parents[1]
SCHEMAS = ROOT / "docs" / "reference" / "schemas"
PYTHON = shlex.quote(sys.executable)

# A way to call each command, and its status. PLACE is a folder with a store, a pack of it, a model and a recording.
INVOCATIONS = {
    "plan": ("plan --model PLACE/plain.toml --arch sm_90a", 0),
    "plan diff": ("plan diff toys-tp1-sm_90a PLACE/kernels.json --store PLACE/store", 1),
    "build": ("build --model PLACE/plain.toml --arch sm_90a --store PLACE/store --jobs 1", 0),
    "replay": ("replay --plan toys-tp1-sm_90a --store PLACE/store", 0),
    "explain": ("explain toys.families:add block=64 --arch sm_90a --store PLACE/store", 0),
    "show": ("show --store PLACE/store", 0),
    "diff": ("diff PLACE/store PLACE/store", 0),
    "report": ("report -o PLACE/report.html --recording PLACE/kernels.json --store PLACE/store", 0),
    "verify": ("verify --store PLACE/store", 0),
    "pack": ("pack --plan toys-tp1-sm_90a --store PLACE/store -o PLACE/again.pfz", 0),
    "unpack": ("unpack PLACE/toys.pfz --store PLACE/unpacked", 0),
    "ls": ("ls --store PLACE/store", 0),
    "gc": ("gc --dry-run --store PLACE/store", 0),
    "record": (f"record -o PLACE/nothing.json -- {PYTHON} -c pass", 3),
    "run": (f"run -- {PYTHON} -c pass", 0),
    "doctor": ("doctor --store PLACE/store", 6),
}


def walk(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every command of the app with the words that call it."""
    if words:
        yield " ".join(words), command
    for name, inner in getattr(command, "commands", {}).items():
        yield from walk(inner, (*words, name))


COMMANDS = dict(walk(typer.main.get_command(app)))


@dataclass(frozen=True)
class Called:
    """What a command gave back."""

    status: int
    output: str
    errors: str


def call(line: str | list[str]) -> Called:
    """Call the command line in this process; neither of its streams is a terminal."""
    done = CliRunner().invoke(app, shlex.split(line) if isinstance(line, str) else line, prog_name="planfreeze")
    return Called(done.exit_code, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def place(built: Any, without_frameworks: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with all that INVOCATIONS name; the processes they start have no framework to import."""
    place = tmp_path_factory.mktemp("manners")
    shutil.copytree(built.store.path, place / "store")
    model = 'hidden = 64\nintermediate = 128\nexperts = 4\ntop_k = 2\nweight_format = "mxfp4"\n'
    (place / "plain.toml").write_text(model + 'programs = "toys.models:enumerate_programs"\n')
    content = {"magic": "planfreeze recording", "format": 1, "archs": ["sm_90a"], "unused": 0, "source_roots": ["."]}
    programs = [{"family": "toys.families:add", "payload": {"block": 32, "warps": 1}, "launches": 1}]
    empty = {"versions": {}, "environment": {}, "choices": [], "refused": []}
    (place / "kernels.json").write_text(json.dumps({**content, **empty, "programs": programs}))
    (place / "start").mkdir()
    (place / "start" / "sitecustomize.py").write_text(without_frameworks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join((str(place / "start"), str(ROOT))))
        patch.setenv("XDG_CACHE_HOME", str(place / "cache"))
        patch.delenv("NO_COLOR", raising=False)
        assert call(f"pack --plan toys-tp1-sm_90a --store {place}/store -o {place}/toys.pfz").status == 0
        yield place


@pytest.fixture
def invoke(place: Path) -> Callable[..., Called]:
    """Call a command as INVOCATIONS says, with more options; of what follows two dashes nothing is one."""

    def invoke(words: str, *options: str) -> Called:
        line, dashes, behind = INVOCATIONS[words][0].replace("PLACE", str(place)).partition(" -- ")
        return call(f"{line} {' '.join(options)} {dashes} {behind}")

    return invoke


def test_every_command_has_a_place_in_these_tables_and_no_other_has() -> None:
    runnable = {words for words, command in COMMANDS.items() if command.callback is not None}
    assert set(INVOCATIONS) == set(EXAMPLES) == runnable
    assert {path.stem.replace("-", " ") for path in SCHEMAS.glob("*.json")} == runnable


def parse(typed: str) -> dict[str, Any]:
    """Parse what is typed behind ``planfreeze`` by the app's own parser, without calling anything."""
    command, context, words = typer.main.get_command(app), None, shlex.split(typed)
    while True:
        context = command.make_context(command.name or "planfreeze", words, parent=context)
        left = [*getattr(context, "_protected_args", ()), *context.args]
        if not hasattr(command, "commands") or not left:
            return dict(context.params)
        _, command, words = command.resolve_command(context, left)


@pytest.mark.parametrize("words", EXAMPLES)
def test_the_help_of_a_command_ends_with_examples_that_its_parser_takes(words: str) -> None:
    shown = call([*words.split(), "--help"]).output.partition("Examples:\n")[2].splitlines()
    lines = [line.strip() for line in shown]
    assert 2 <= len(lines) // 2 <= 4
    assert any(line.startswith(f"planfreeze {words}") for line in lines)
    for purpose, typed in zip(lines[::2], lines[1::2], strict=True):
        assert len(purpose) > len("# what") and purpose.startswith("# ")
        options = parse(typed.removeprefix("planfreeze "))
        assert set(options.get("arch") or ()) <= set(ARCHS)
        assert options.get("model") in (None, "config.json", *catalog_names())


def test_an_example_with_an_option_that_is_gone_is_found() -> None:
    with pytest.raises(Exception, match="--modle"):
        parse("plan --modle ds41")


def close(schema: Any) -> Any:
    """A schema in which an object has every key that is described and no other."""
    if isinstance(schema, list):
        return [close(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: close(value) for name, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and "type" in schema:
        assert set(schema["required"]) == set(schema["properties"])
        closed["additionalProperties"] = False
    return closed


def check(words: str, printed: Any) -> None:
    """Check what a command printed, or would print, key by key."""
    schema = json.loads((SCHEMAS / f"{words.replace(' ', '-')}.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(printed, close(schema))


@pytest.mark.parametrize("words", INVOCATIONS)
def test_json_is_as_its_schema_says_and_quiet_leaves_only_errors(invoke: Callable[..., Called], words: str) -> None:
    done = invoke(words, "--json", "--quiet")
    check(words, json.loads(done.output))
    assert done.status == INVOCATIONS[words][1]
    lines = done.errors.splitlines()
    assert [line for line in lines if not line.startswith("error: ")] == []
    assert bool(lines) == (done.status != 0)


def test_what_goes_wrong_is_in_json_as_the_schemas_say(built: Any, place: Path, tmp_path: Path) -> None:
    reused = built.report.outcomes[0]
    outcomes = (replace(reused, status="failed", record=None, reason="no"), replace(reused, earlier="signal 9"))
    check("build", build_json(BuildReport(outcomes=outcomes, plans=built.report.plans)))

    damaged = built.copy(tmp_path / "store")
    blob = next(damaged.path.glob("objects/*/*"))
    blob.chmod(0o644)
    blob.write_bytes(b"")
    done = call(f"verify --store {damaged.path} --json")
    printed = json.loads(done.output)
    assert done.status == 4 and printed["problems"]
    check("verify", printed)
    found = Verification(checked={"blob": 1}, size_bytes=1, problems=(), others=(("blob", "0"),))
    check("verify", verification_json(found, (), Repair(rebuilt=1, restored=("a",), refused=(("b", "no"),))))

    recording = json.loads((place / "kernels.json").read_text())
    choice = {"kernel": "a:b", "space": "0", "key": [1, "fp16"], "config": [["block", 64]]}
    recording |= {"choices": [choice], "refused": [{"kernel": "a:c", "reason": "no"}]}
    (tmp_path / "all.json").write_text(json.dumps(recording))
    check("record", recording_json(read_recording(tmp_path / "all.json")))

    note = Finding(level="note", what="something", advice="nothing")
    machine = Machine(versions=(), driver="1", cuda="1", gpus=(Gpu(name="one", capability=(9, 0)),), tools=())
    made = Diagnosis(machine=machine, roads={}, unseen=UNSEEN, store="", plans=("a",), findings=(note,))
    check("doctor", diagnosis_json(made))


@pytest.mark.parametrize("words", INVOCATIONS)
def test_there_is_no_colour_and_no_bar_in_a_pipe(invoke: Callable[..., Called], words: str) -> None:
    done = invoke(words)
    assert done.status == INVOCATIONS[words][1] and done.output + done.errors
    assert re.findall(r"[\x1b\r\x08]", done.output + done.errors) == []


def show(*arguments: object, **environment: str) -> str:
    """What a terminal gets from both streams of a command."""
    master, slave = pty.openpty()
    environ = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")}
    started = subprocess.Popen(
        [sys.executable, "-m", "planfreeze", *map(str, arguments)],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**environ, "TERM": "xterm-256color", **environment},
    )
    os.close(slave)
    shown = b""
    try:
        while chunk := os.read(master, 65536):
            shown += chunk
    except OSError:  # how Linux tells that nobody holds the other end any more
        pass
    os.close(master)
    assert started.wait(timeout=60) == 0, shown
    return shown.decode()


COLOUR = r"\x1b\[[0-9;]*\b(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])\b[0-9;]*m"


def test_a_terminal_gets_a_bar_in_colour_and_neither_if_it_asks_for_none(place: Path) -> None:
    store = ("--store", place / "store")
    assert re.search(COLOUR, show("verify", *store))
    without = show("verify", *store, NO_COLOR="1")
    assert "verify" in without and not re.search(COLOUR, without)
    assert "\x1b[1m" in show("ls", *store)
    assert not re.search(COLOUR, show("ls", *store, NO_COLOR="1"))
    for quiet in (show("verify", *store, "--quiet"), show("verify", *store, TERM="dumb")):
        assert "\x1b" not in quiet and quiet.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "status", "message"),
    [
        ("plan diff toys-tp1-sm_90a PLACE/kernels.json --store PLACE/store", 1, "planfreeze build --plan"),
        ("gc --dry-run --max-bytes 0 --store PLACE/store", 1, "planfreeze ls"),
        ("frobnicate", 2, "planfreeze --help"),
        ("biuld", 2, "Did you mean 'build'"),
        ("verify --stroe x", 2, "--store"),
        ("explain toys.families:add block=7 --store PLACE/store", 3, "planfreeze plan"),
        ("ls --store PLACE/nowhere", 3, "planfreeze build"),
        ("replay --pack PLACE/torn.pfz", 4, "torn.pfz"),
        ("build --model PLACE/plain.toml --store /proc/store", 6, "/proc/store"),
        ("run -- PLACE/plain.toml", 126, "planfreeze run --"),
        ("run -- no-such-program", 127, "planfreeze run --"),
    ],
)
def test_every_status_comes_with_what_to_do(place: Path, line: str, status: int, message: str) -> None:
    (place / "torn.pfz").write_bytes((place / "toys.pfz").read_bytes()[:-1])
    done = call(line.replace("PLACE", str(place)))
    assert (done.status, message in done.errors) == (status, True), done.errors


def test_a_compiler_that_was_reached_is_in_the_json_and_comes_with_what_to_do(place: Path) -> None:
    script = 'import subprocess; subprocess.run(["nvcc", "a.cu"])'
    done = call(["run", "--json", "--quiet", "--", sys.executable, "-c", script])
    assert done.status == 5 and "planfreeze record" in done.errors
    printed = json.loads(done.output)
    assert printed["attempts"]
    check("run", printed)


def test_an_interrupt_says_what_stays(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("planfreeze.collection.take_census", interrupt)
    done = call(f"ls --store {place}/store")
    assert done.status == 130 and "what is published stays" in done.errors
