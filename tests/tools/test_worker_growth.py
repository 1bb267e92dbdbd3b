"""The growth of one compile process, in its short form."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


# The DSL grows by 1.6 MiB a program at first and lets go in batches: it levels off after some 150.
@pytest.mark.parametrize(("dialect", "compiles", "every"), [("triton", 120, 40), ("cute", 240, 80)])
def test_a_compile_process_levels_off_in_threads_files_and_memory(dialect, compiles, every):
    command = [sys.executable, "tools/worker_growth.py", "--dialect", dialect]
    command += ["--compiles", str(compiles), "--every", str(every)]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    first, second, third = map(json.loads, done.stdout.splitlines())
    assert [look["compiles"] for look in (first, second, third)] == [every, 2 * every, 3 * every]
    for name in ("threads", "files"):
        assert first[name] == second[name] == third[name] < 16
    assert third["resident_kib"] - second["resident_kib"] < every * 256
