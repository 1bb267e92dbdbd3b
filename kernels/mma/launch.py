"""Launches of kernels: while they are compiled, and one after the other.

A program launched programmatically may start before the launch before it on its stream is complete. Every kernel of a
layer waits for that before it touches anything the launch before it writes or reads, and lets the next one start only
then; so what is older than the launch before is complete when a kernel starts, and may be touched at once.

Source: PTX ISA, "griddepcontrol".
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
from cutlass import cute

__all__ = ["follow", "launch_once", "start_next", "wait_for_previous"]


def wait_for_previous():
    """Wait until the launch before this one is complete; in a plain launch it is, and this does nothing."""
    cute.arch.griddepcontrol_wait()


def start_next():
    """Let the next launch start, if it is a programmatic one, once all blocks of this one have come here or ended."""
    cute.arch.griddepcontrol_launch_dependents()


def follow():
    """Begin a kernel that has nothing to do before the launch before it is complete."""
    wait_for_previous()
    start_next()


def launch_once(kernel, launch, stream):
    """Launch a kernel with the facts it is compiled for.

    Parameters
    ----------
    kernel
        What calling the ``cute.kernel`` method gave.
    launch : LaunchInfo
        Block, shared memory, the blocks that registers are limited for, and the carveout.
    stream
        Stream of the call.

    Notes
    -----
    The grid of one block is a placeholder: host code is thrown away, and a program gets its grid when it runs.
    """
    kernel.launch(
        grid=[1, 1, 1],
        block=list(launch.block),
        smem=launch.shared_bytes,
        stream=stream,
        min_blocks_per_mp=launch.min_blocks,
        preferred_smem_carveout=launch.carveout_percent,
    )
