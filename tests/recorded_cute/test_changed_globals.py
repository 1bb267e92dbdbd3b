"""A global that a function reads is changed while its programs are recorded or served: never the old value."""

from pathlib import Path

import pytest

from .conftest import ARCH, GUARD, Workshop
from .programs import IMPORTS

TABLES = "SCALE = 2\ndef times(x): return x * SCALE\n"
SETUP = """
import tables
FACTOR = 3
@cute.jit
def scaled(n: cutlass.Int32): cute.printf("scaled %d", tables.times(n) * FACTOR)
def close(number):
    @cute.jit
    def closed(n: cutlass.Int32): cute.printf("closed %d", n * FACTOR + number)
    return closed
"""


@pytest.fixture(scope="module")
def changing(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    """Functions that read globals, of their module and of another, recorded and built."""
    workshop = Workshop(tmp_path_factory.mktemp("changing"))
    workshop.write("tables.py", TABLES)
    calls = "if __name__ == '__main__':\n    scaled(5)\n    close(1)(5)\n"
    script = workshop.write("changing.py", IMPORTS, SETUP, calls)
    assert workshop.record(script)["refused"] == []
    assert workshop.build("changing")["failed"] == []
    return workshop


CHANGES = {
    "tables.SCALE = 4": ("uses SCALE: it is 4, and by the text 2", "scaled(5)"),
    "changing.FACTOR = 4": ("uses FACTOR: it is 4, and by the text 3", "scaled(5)"),
    "changing.FACTOR = 3.0": (r"uses FACTOR: it is 3.0, and by the text 3", "close(1)(5)"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("is_launched_before", [False, True])
def test_a_changed_global_is_never_served(changing: Workshop, change: str, is_launched_before: bool) -> None:
    reason, call = CHANGES[change]
    before = f"{call}\n" * 2 if is_launched_before else ""
    body = f"import changing, tables\nfrom changing import scaled, close\n{before}{change}\n{call}\n"
    script = changing.write("changes.py", GUARD, body)
    said = changing.run(script, status=1, environment=changing.served_environment("changing"))
    assert reason in said
    assert f"changing-{ARCH}" in said
    assert said.count("scaled 30") + said.count("closed 16") == 2 * is_launched_before


def test_a_value_that_is_put_back_is_served_again(changing: Workshop) -> None:
    body = """
import changing
from changing import scaled
from planfreeze.errors import CompilationForbidden
scaled(5)
changing.FACTOR = 4
try:
    scaled(5)
except CompilationForbidden:
    changing.FACTOR = 3
    scaled(5)
"""
    script = changing.write("back.py", GUARD, body)
    said = changing.run(script, environment=changing.served_environment("changing"))
    assert said == "scaled 30\nscaled 30\nattempts 1\n"


def test_a_run_that_changed_a_global_is_not_recorded(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path)
    workshop.write("tables.py", TABLES)
    calls = "if __name__ == '__main__':\n    FACTOR = 4\n    scaled(5)\n    close(1)(5)\n"
    recording = workshop.record(workshop.write("changed.py", IMPORTS, SETUP, calls), status=1)
    assert recording["programs"] == []
    reasons = [line["reason"] for line in recording["refused"]]
    assert len(reasons) == 2
    assert all("FACTOR" in reason for reason in reasons), reasons
