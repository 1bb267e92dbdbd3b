"""Two tuners around one kernel: each is served its own choice."""

import json

TUNED_TWICE = """
import device
import triton
import triton.language as tl
from device import Pointer

@triton.jit
def core(x, n, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(x + offsets, offsets.to(tl.float32), mask=offsets < n)

CONFIGS = [triton.Config({"BLOCK": block}, num_warps=1) for block in (32, 64, 128)]

def keep_first(configs, named_arguments, **options):
    return configs[:1]

def keep_last(configs, named_arguments, **options):
    return configs[-1:]

def tune(configs, **pruning):
    return triton.autotune(configs, key=["n"], prune_configs_by=pruning)(core)

TUNERS = {
    "first": tune(CONFIGS, early_config_prune=keep_first),
    "last": tune(CONFIGS, early_config_prune=keep_last),
    "shorter": tune(CONFIGS[:2], early_config_prune=keep_last),
}

if __name__ == "__main__":
    for tuner in TUNERS.values():
        tuner[(1,)](Pointer(), 100)
    print("chosen", [tuner.best_config.kwargs["BLOCK"] for tuner in TUNERS.values()])
"""


def test_two_tuners_of_one_kernel_are_planned_and_served_apart(project):
    (project.folder / "twice.py").write_text(TUNED_TWICE)
    recorded = project.record("twice.py")
    assert len({json.dumps(program["payload"]["constants"]) for program in recorded["programs"]}) == 3
    spaces = {choice["space"] for choice in recorded["choices"]}
    assert len(recorded["choices"]) == len(spaces) == 3, (
        "same kernel and tuning key, told apart by what they choose among"
    )
    project.build()
    assert "chosen [32, 128, 64]" in project.serve("twice.py")
