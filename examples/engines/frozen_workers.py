"""A plug-in of vLLM: every GPU worker freezes the session of its process when its warm-up is done."""

import functools
import importlib
from typing import Any

__all__ = ["register"]

WORKER = "vllm.v1.worker.gpu_worker"
STEP = "compile_or_warm_up_model"


def register() -> None:
    """Have the last step of a worker's start freeze ``planfreeze.session()``.

    vLLM calls this in each of its processes before they choose a device, and maybe more than once in one; so nothing
    is loaded here, and a second call changes nothing.

    Raises
    ------
    RuntimeError
        This version's worker has no such step. Without it nothing would ever be frozen.
    """
    worker = importlib.import_module(WORKER).Worker
    step = getattr(worker, STEP, None)
    if step is None:
        raise RuntimeError(
            f"{WORKER}.Worker has no {STEP}: workers would serve without being frozen. Use a version of vLLM that "
            "has it"
        )
    if not getattr(step, "is_freezing", False):
        setattr(worker, STEP, freezing(step))


def freezing(step: Any) -> Any:
    """Return a step that freezes behind another one."""

    @functools.wraps(step)
    def run(self: Any) -> Any:
        import planfreeze

        done = step(self)
        planfreeze.session().freeze()  # an error ends the worker before its first request
        return done

    run.is_freezing = True  # type: ignore[attr-defined]
    return run
