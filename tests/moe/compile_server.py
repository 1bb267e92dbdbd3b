"""Compile CuTe kernels, each in a fork of this process, which has imported the DSL once: that takes longer than most.

Run with the architecture as its argument, which the DSL latches when it is imported. A line of input is one request
and a line of output its answer: the text of the error, or nothing.
"""

import importlib
import json
import os
import sys
import traceback
from pathlib import Path

os.environ["CUTE_DSL_ARCH"] = sys.argv[1]

from cutlass import Int32, Int64, cute
from cutlass.cute.runtime import make_fake_stream

import planfreeze
from planfreeze.family import LaunchInfo


def compile_source(request: dict) -> None:
    """Compile what a request names into the folder it names."""
    assert str(Path(planfreeze.__file__).parents[1]) == os.environ["PYTHONPATH"]
    os.chdir(request["folder"])
    os.environ["HOME"] = request["folder"]
    module, _, attribute = request["kernel"].partition(":")
    launch = LaunchInfo(**{name: tuple(v) if isinstance(v, list) else v for name, v in request["launch"].items()})
    kernel = getattr(importlib.import_module(module), attribute)(launch=launch, **request["constants"])
    zeros = [Int64(0)] * request["pointers"] + [Int32(0)] * request["scalars"]
    made = cute.compile(kernel, *zeros, make_fake_stream(), options="--keep-cubin --keep-ptx")
    ptx = made.artifacts.PTX
    Path("made.ptx").write_text(ptx if isinstance(ptx, str) else ptx.decode())
    Path("made.cubin").write_bytes(made.artifacts.CUBIN)


def answer(line: str) -> str:
    """Compile in a fork; return the text of its error."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            compile_source(json.loads(line))
            status = 0
        except BaseException:  # noqa: BLE001  # the test reports it
            os.write(theirs, traceback.format_exc().encode())
        finally:
            os._exit(status)
    os.close(theirs)
    with os.fdopen(ours) as stream:
        text = stream.read()
    _, status = os.waitpid(child, 0)
    return text or (f"the process ended with {os.waitstatus_to_exitcode(status)}" if status else "")


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what compilers print is no answer
    for line in sys.stdin:
        answers.write(json.dumps(answer(line)) + "\n")
        answers.flush()
