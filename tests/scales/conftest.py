"""What the MoE tests compile and run kernels with, for the kernels of scales."""

from ..moe.conftest import compile_cute, cuobjdump, ptx_machine

__all__ = ("compile_cute", "cuobjdump", "ptx_machine")
