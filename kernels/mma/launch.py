"""Launch of a kernel while it is compiled."""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"

__all__ = ["launch_once"]


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
