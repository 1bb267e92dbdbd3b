"""Cubins of both compilers and both assemblers: the sources they are made of, and tools of NVIDIA that read them."""

import importlib.util
import subprocess
from pathlib import Path

TRITON_SCRIPT = """
import sys
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

@triton.jit
def spread_sum(x, y, count, stride, block: tl.constexpr):
    i = tl.program_id(0) * block + tl.arange(0, block)
    value = tl.load(x + i * stride, mask=i < count)
    tl.store(y + i, value + tl.sum(value), mask=i < count)

signature = {"x": "*fp32", "y": "*fp32", "count": "i32", "stride": "i64", "block": "constexpr"}
source = ASTSource(spread_sum, signature, {(4,): 1024})
for capability in (90, 100, 120):
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 8})
    with open(f"triton-{capability}.cubin", "wb") as file:
        file.write(made.asm["cubin"])
"""

CUTE_SCRIPT = """
import os
import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64
from cutlass.cute.runtime import make_fake_stream

@cute.kernel
def scatter(out: Int64, count: Int32, value: Int64, shift: Int32):
    thread, _, _ = cute.arch.thread_idx()
    shared = cute.make_tensor(cute.arch.alloc_smem(Int32, 512, alignment=128), cute.make_layout(512))
    shared[thread] = shift + thread
    cute.arch.sync_threads()
    if thread < count:
        address = cute.make_ptr(Int32, out, cute.AddressSpace.gmem, assumed_align=4)
        cute.make_tensor(address, cute.make_layout(1024))[thread] = shared[511 - thread] + Int32(value)

@cute.jit
def launch(out: Int64, count: Int32, value: Int64, shift: Int32, stream):
    scatter(out, count, value, shift).launch(grid=[1, 1, 1], block=[96, 1, 1], stream=stream)

arguments = (Int64(0), Int32(0), Int64(0), Int32(0), make_fake_stream())
made = cute.compile(launch, *arguments, options="--keep-cubin --keep-ptx")
with open(f"cute-{os.environ['CUTE_DSL_ARCH']}.cubin", "wb") as file:
    file.write(made.artifacts.CUBIN)
"""

# Two kernels and a device function: frames, parameters of odd sizes and above 4 KiB, static shared memory.
PTX = """
.version 8.7
.target {arch}
.address_size 64
.func (.param .b32 answer) deep(.param .b32 x)
{{ .local .align 16 .b8 frame[256]; .reg .b64 %a<4>; .reg .b32 %r<3>;
   ld.param.b32 %r1, [x]; cvt.u64.u32 %a1, %r1; mov.u64 %a2, frame; add.u64 %a3, %a2, %a1;
   st.local.u32 [%a3], %r1; ld.local.u32 %r2, [%a3+8]; st.param.b32 [answer], %r2; ret; }}
.visible .entry large(.param .u64 a, .param .align 16 .b8 c[{large}], .param .u8 d) .reqntid 96, 2, 1
{{ .reg .b64 %a<2>; .reg .b32 %r<5>; .shared .align 16 .b8 buffer[4100];
   ld.param.u64 %a1, [a]; ld.param.u32 %r1, [c+16]; ld.global.u32 %r2, [%a1+32];
   {{ .param .b32 p; .param .b32 q; st.param.b32 [p], %r2; call.uni (q), deep, (p); ld.param.b32 %r3, [q]; }}
   st.shared.u32 [buffer+16], %r3; bar.sync 0; ld.shared.u32 %r4, [buffer+1024];
   st.global.u32 [%a1], %r4; st.global.u32 [%a1+4], %r1; ret; }}
.visible .entry limited(.param .u64 a, .param .u32 b, .param .align 16 .b8 c[40]) .maxntid 256, 1, 1
{{ .reg .b64 %a<2>; .reg .b32 %r<2>; ld.param.u64 %a1, [a]; ld.param.u32 %r1, [b];
   st.global.u32 [%a1], %r1; ret; }}
.visible .entry bare() {{ ret; }}
"""
ASSEMBLED = [(tool, arch) for tool in ("ptxas", "ptxas-blackwell") for arch in ("sm_80", "sm_90", "sm_90a")] + [
    ("ptxas-blackwell", arch) for arch in ("sm_100a", "sm_120", "sm_120a")
]


def nvidia_tool(name: str) -> str:
    """Path of a CUDA tool in Triton's wheel."""
    spec = importlib.util.find_spec("triton")
    assert spec is not None and spec.submodule_search_locations
    return str(Path(spec.submodule_search_locations[0]) / "backends" / "nvidia" / "bin" / name)


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
