"""Device probes: kernel families outside the package that show what a part of its kernels computes on a GPU.

With ``tools/`` on ``sys.path`` they are families like any other: planned, compiled, stored and launched by planfreeze.
"""
