"""examples/serving_loop.py on a device: PLANFREEZE_TEST_PACK is a store with layer_1024_320-tp1-sm_90a, all arms."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

EXAMPLE = Path(__file__).parents[2] / "examples" / "serving_loop.py"


def test_the_serving_loop_compiles_nothing_allocates_nothing_and_all_arms_agree(tmp_path: Path) -> None:
    command = [sys.executable, EXAMPLE, "--small", "--trust-store", "--store", os.environ["PLANFREEZE_TEST_PACK"]]
    command += ["--json", tmp_path / "found.json", "--prompts", "8192,10000"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["compiled"], found["problems"]) == (0, [])
    assert [arm["arm"] for arm in found["arms"]] == ["inline", "expand", "native"]
    for arm in found["arms"]:
        assert [row["tokens"] for row in arm["served"]] == [1, 2, 4, 8, 16, 32, 64, 8192, 10000]
        assert all((row["allocations"], row["segments"]) == (0, 0) for row in arm["served"])
        assert all(row["tokens_per_s"] > 0 for row in arm["served"])
        assert arm["launches"] == arm["expected_launches"] > 0
        assert arm["memory"]["allocated"] <= arm["memory"]["reserved"]
        # Routes that collapse to a few experts would be served faster than any model's.
        assert next(row["experts"] for row in arm["served"] if row["tokens"] == 64) > 7
    inline = {row["tokens"]: row["scale_mode"] for row in found["arms"][0]["served"]}
    assert (inline[64], inline[8192]) == ("inline", "expand")
