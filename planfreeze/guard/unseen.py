"""What no guard can see: roads to a compiler that Python code cannot stand in front of, and why."""

from typing import NamedTuple

__all__ = ["UNSEEN", "Unseen"]


class Unseen(NamedTuple):
    """A way to compile that goes unnoticed.

    Parameters
    ----------
    name : str
        The way; ``docs/reference/guard.md`` has the same words.
    reason : str
        Why a guard does not see it.
    """

    name: str
    reason: str


UNSEEN: tuple[Unseen, ...] = (
    Unseen(
        name="Later stages of a Triton backend called by hand on existing IR",
        reason="C++ passes behind private bindings",
    ),
    Unseen(
        name="`load_binary` of Triton's driver module called by hand",
        reason="a function of a C module, made at first use",
    ),
    Unseen(
        name="What `knobs.build.impl` does",
        reason="code of others; a compiler process it starts is seen where processes are watched",
    ),
    Unseen(
        name="A user's own loop that times kernels",
        reason="no call to the autotuner; compiles in it are seen",
    ),
    Unseen(
        name="MLIR passes run through private CuTe bindings",
        reason="C++ behind private bindings",
    ),
    Unseen(
        name="A compile that is already running when the guard is armed",
        reason="it is past the gates; its later stages may be stopped",
    ),
    Unseen(
        name="A child started with `-S`, `-I` or `-E`",
        reason="it runs no `sitecustomize`, or reads no variable",
    ),
    Unseen(
        name="A child whose starter gives it another environment or another `PYTHONPATH`",
        reason="the guard travels in those",
    ),
    Unseen(
        name="A child behind `ssh`, `sudo`, a container or a job scheduler that drops the environment",
        reason="the same",
    ),
    Unseen(
        name="A process that was running when the guard was armed, such as a forkserver or a pool",
        reason="it started before; arm before it starts",
    ),
    Unseen(
        name="A child of Python before 3.11",
        reason="planfreeze does not run there",
    ),
    Unseen(
        name="Compilers in programs that are not Python",
        reason="nothing in them asks the guard",
    ),
    Unseen(
        name=(
            "NVRTC, NVVM, nvJitLink and the driver's JIT called from C++: torch's jiterator, TorchScript's fusers, "
            "cuFFT, Thrust, cuDNN, extensions"
        ),
        reason="no Python function is called",
    ),
    Unseen(
        name="The same libraries through ctypes, and numba, pycuda and Warp, which bind them themselves",
        reason="Python sees the load of a library and not the call",
    ),
    Unseen(
        name="A function of an extension module kept in a container, a default argument or an instance before arming",
        reason="such a function cannot be changed; names in modules are exchanged",
    ),
    Unseen(
        name="`repr()` and `==` of a `cuda.core.ObjectCode` of PTX, which load it",
        reason="they go past the attributes of the type",
    ),
    Unseen(
        name="A fat binary whose cubins are all for another architecture",
        reason="the driver then compiles its PTX; the headers do not say which device will load it",
    ),
    Unseen(
        name=(
            "Processes that native code starts, `_posixsubprocess.fork_exec` called by hand, `system` called by ctypes"
        ),
        reason="the interpreter does not announce them",
    ),
    Unseen(
        name="What a started program or script starts itself",
        reason="it is another process; one that runs Python can carry a guard of its own",
    ),
    Unseen(
        name="A copy of a compiler, or a hard link to one, under another name",
        reason="only its name tells it",
    ),
    Unseen(
        name="A compiler executed in a child that the program forked itself",
        reason="it is stopped there, but the child's counts are not this process's",
    ),
    Unseen(
        name="Jobs handed to Inductor's workers before arming",
        reason="they have left the process",
    ),
)
