"""Examples on a machine without a GPU; tests/gpu runs them on one."""

import os
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_the_decode_example_says_that_there_is_no_gpu(tmp_path: Path) -> None:
    command = [sys.executable, EXAMPLES / "micro_decode.py", "--model", "ds41", "--tp", "4", "--store", tmp_path]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stdout) == (6, "")
    assert "no CUDA device" in done.stderr


def test_the_decode_example_refuses_a_model_that_is_not_there(tmp_path: Path) -> None:
    command = [sys.executable, EXAMPLES / "micro_decode.py", "--model", "ds99", "--store", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "ds99" in done.stderr
