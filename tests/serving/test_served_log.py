"""The log of served programs: what becomes of a line that it does not take."""

from pathlib import Path

import pytest

from planfreeze.errors import ServedLogFailed
from planfreeze.serving.programs import load_plan, note_served, read_served


def test_a_full_disk_is_named_with_the_program_that_would_count_as_unused(built) -> None:
    served = load_plan("toys-tp1-sm_90a", built.store.path, True, Path("/dev/full"))
    with pytest.raises(ServedLogFailed, match="No space left on device") as raised:
        note_served(served, served.programs[0])
    assert (raised.value.exit_code, raised.value.program) == (6, served.programs[0].name)


def test_a_log_that_takes_lines_holds_the_program(built, tmp_path: Path) -> None:
    served = load_plan("toys-tp1-sm_90a", built.store.path, True, tmp_path / "log")
    note_served(served, served.programs[0])
    assert read_served(tmp_path / "log") == {served.programs[0].payload.digest}
