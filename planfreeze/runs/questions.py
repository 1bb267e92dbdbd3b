"""Questions that a child process answers, since answering them imports compilers, frameworks or the driver."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from planfreeze import errors

__all__ = ["ask_device", "ask_driver_library", "ask_guard", "ask_tensor_checks", "prove_start"]

ANSWER_TIMEOUT_S = 300.0

# Makes the deliberate attempts in a process that a guard was to reach by its environment alone.
GUARD = """
import json, sys
try:
    from planfreeze.guard.watch import watch
    is_armed = bool(watch.armed)
except ImportError:
    is_armed = False
roads = {}
if is_armed:
    from planfreeze.guard import self_test
    states = {True: "awake", False: "asleep"}
    roads = {road: states.get(proof, proof) for road, proof in self_test().items()}
sys.stdout.write("\\n" + json.dumps({"is_armed": is_armed, "roads": roads}))
"""

# Opens the current device as a session would, and says why it cannot.
DEVICE = """
import json, sys
from planfreeze.errors import PlanfreezeError
try:
    from planfreeze.device import Device
    Device()
    answer = ["", 0]
except PlanfreezeError as error:
    answer = [str(error), error.exit_code]
except Exception as error:
    answer = [f"the device cannot be opened: {type(error).__name__}: {error}", 1]
sys.stdout.write("\\n" + json.dumps(answer))
"""

# Asks for a check of a tensor as sessions do for those of their programs.
TENSOR_CHECKS = """
import json, sys
try:
    import torch
    from planfreeze.tensor_checks import find_obstacle
    answer = find_obstacle(torch)
except Exception as error:
    answer = f"{type(error).__name__}: {error}"
sys.stdout.write("\\n" + json.dumps(answer))
"""

# Asks Triton for the library that it builds for the driver, up to the build: its cache has it or not.
DRIVER_LIBRARY = """
import json, sys
class Build(BaseException): pass
class Cached(BaseException): pass
def build_one(*arguments, **options): raise Build
def load_one(*arguments, **options): raise Cached
try:
    from triton.runtime import build
    build._build, build._load_module_from_path = build_one, load_one
    from triton.backends.nvidia.driver import CudaUtils
    CudaUtils()
    answer = "unknown"
except Build:
    answer = "to be built"
except Cached:
    answer = "cached"
except Exception:
    answer = "unknown"
sys.stdout.write("\\n" + json.dumps(answer))
"""


def ask_guard(environment: Mapping[str, str], python: Sequence[str] = (sys.executable,)) -> dict[str, str]:
    """Start Python with an environment that arms a guard, and let it make one deliberate attempt per road.

    Returns
    -------
    dict
        Road to "awake", "asleep" or "not installed". No attempt is counted or logged.

    Raises
    ------
    StartNotWatched
        No guard is armed in the process.
    GuardAsleep
        The attempts could not be made.
    """
    answer, log = ask(GUARD, environment, python)
    if answer is None:
        raise errors.GuardAsleep("all", log)
    if not answer["is_armed"]:
        raise errors.StartNotWatched(" ".join(python), log)
    roads: dict[str, str] = answer["roads"]
    return roads


def prove_start(environment: Mapping[str, str], python: Sequence[str] = (sys.executable,)) -> dict[str, str]:
    """Return :func:`ask_guard`'s answer when no road sleeps.

    Raises
    ------
    StartNotWatched
        No guard is armed in the process.
    GuardAsleep
        An installed compiler was reached under the guard.
    """
    roads = ask_guard(environment, python)
    asleep = [road for road, state in roads.items() if state == "asleep"]
    if asleep:
        raise errors.GuardAsleep(", ".join(asleep), "")
    return roads


def ask_device() -> tuple[str, int]:
    """Return why the current device cannot be opened, with an exit status; ("", 0) when it can."""
    answer, log = ask(DEVICE)
    return (f"the device cannot be opened: {log}", 1) if answer is None else (answer[0], answer[1])


def ask_tensor_checks() -> str:
    """Return why checked launches look at tensors one by one; "" when they take them in one go."""
    answer: str | None
    answer, log = ask(TENSOR_CHECKS)
    return log if answer is None else answer


def ask_driver_library() -> Literal["cached", "to be built", "unknown"]:
    """Return what becomes of the library that Triton builds for the driver; unknown without a driver."""
    answer: Literal["cached", "to be built", "unknown"] | None = ask(DRIVER_LIBRARY)[0]
    return answer or "unknown"


def ask(
    script: str, environment: Mapping[str, str] | None = None, python: Sequence[str] = (sys.executable,)
) -> tuple[Any, str]:
    """Return what a script prints as JSON on its last line, else None, and its standard error."""
    done = subprocess.run(
        [*python, "-P", "-c", script],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        timeout=ANSWER_TIMEOUT_S,
    )
    try:
        return json.loads(done.stdout.rpartition("\n")[2]), done.stderr.strip()
    except ValueError:
        return None, done.stderr.strip()
