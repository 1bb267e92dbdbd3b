"""Launches of kernels: while they are compiled, and one after the other.

A program launched programmatically may start before the launch before it on its stream is complete. Most kernels of a
layer wait for that before they touch anything it writes or reads, and let the next one start only then; so what is
older than the launch before them is complete when they start, and some read it at once: ids, routes, weights, scales.

Three let the next one start before they have waited: ``micro_act``, ``route_plan``, which also writes before it waits,
and ``split_fc2``. What follows the latter two has to wait before it touches anything. What follows ``micro_act`` may
touch what is older than the launch before that one, and what neither of the two touches: ``micro_fc2`` reads ids,
weights and scales, and clears the rows of routes without an expert. The launch before ``micro_act`` has to be
``micro_fc1``, as in a layer, or a plain one; that before ``route_plan`` one that waits first, or a plain one. All wait
before they end, so that who waits for one relies on all before it.

What a kernel reads before it waits may have been written by a launch that ended before it started, and be in no cache
of the SM from an earlier one: caches are taken to be invalid where a grid starts, as they are for plain launches.

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
