"""Texts of programs that tests record: every way to call the DSL, on a CPU and with kernels."""

IMPORTS = """
import sys
import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
"""

# Host functions run without a GPU: cute.printf says what they were given.
HOSTS = """
def double(x): return x * 2
class Shape:
    def __init__(self, *extents): self.extents = extents
class Scale:
    def __init__(self, times, shape): self.times, self.shape = times, shape
    @cute.jit
    def __call__(self, n: cutlass.Int32):
        self.seen = n  # tracing may change the instance: a new attribute, and one that was there
        self.times = self.times if isinstance(self.times, int) else 1
        self.shape = Shape(*self.shape.extents, n)
        cute.printf("scale %d of %d", n * self.times, self.shape.extents[0])
    @cute.jit
    def method(self, n: cutlass.Int32):
        cute.printf("method %d", n * self.times)
@cute.jit
def hello(n: cutlass.Int32, limit: cutlass.Constexpr):
    cute.printf("hello %d of %d", n, limit)
@cute.jit
def named(a: cutlass.Int32, *, b: cutlass.Int64 = 5, kind: cutlass.Constexpr = None):
    if cutlass.const_expr(kind is None):
        cute.printf("named %d %ld", a, b)
    else:
        cute.printf("named %d %ld, wide", kind(a), b)
@cute.jit
def several(*numbers):
    cute.printf("several %d", numbers[0] + numbers[-1])
@cute.jit
def pair(numbers, nothing, element):
    cute.printf("pair %d %f", numbers[0], element(numbers[1]))
@cute.jit
def inner(n: cutlass.Int32):
    cute.printf("inner %d", n)
@cute.jit
def outer(n: cutlass.Int32):
    inner(n + 1)
def close(number, shape, function):
    @cute.jit
    def closed(n: cutlass.Int32):
        value = n + number + shape[0]
        if cutlass.const_expr(function is not None):
            value = function(value)
        cute.printf("closed %d", value)
    return closed
def call_hosts():
    hello(3, 4)
    hello(5, 4)
    hello(5, 6)
    hello(n=7, limit=6)
    named(1)
    named(2, b=9, kind=cutlass.Int32)
    several(1, 2, 3)
    several(4, 5)
    pair((7, 1.5), None, cutlass.Float32)
    outer(10)
    scale = Scale(3, Shape(4, 8))
    scale(2)
    scale(3)
    scale.times = 4
    scale(2)
    Scale(3, Shape(5, 8))(2)
    Scale(2, Shape(1)).method(21)
    for _ in range(2):
        compiled = cute.compile(inner, 0)
        compiled(30); compiled(n=31)
    cute.compile(Scale(5, Shape(6)), cutlass.Int32(1))(9)
    cute.compile(Scale(5, Shape(6)).method, cutlass.Int32(1))(9)
    cute.compile[cute.OptLevel(1)](inner, 0)(40)
    cute.compile(inner, 0, options="--opt-level 2 --ptxas-options '-O1'")(41)
def call_closures(order=1):
    for number, shape, function in ((1, (10,), None), (2, (10,), None), (1, (20,), None), (1, (10,), double))[::order]:
        close(number, shape, function)(100)
"""

# Kernels: one, several of one function, none; with dynamic and static layouts, and streams.
KERNELS = """
from cutlass.cute.runtime import from_dlpack
@cute.kernel
def fill_kernel(x: cute.Tensor, value: cutlass.Float32):
    thread, _, _ = cute.arch.thread_idx()
    if thread < cute.size(x):
        x[thread] = value
@cute.kernel
def add_kernel(x: cute.Tensor, y: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    if thread < cute.size(x):
        y[thread] = x[thread] + y[thread]
@cute.jit
def fill(x: cute.Tensor, value: cutlass.Float32, stream: cuda.CUstream):
    fill_kernel(x, value).launch(grid=(cute.ceil_div(cute.size(x), 64), 1, 1), block=(64, 1, 1), stream=stream)
@cute.jit
def fill_and_add(x: cute.Tensor, y: cute.Tensor):
    fill_kernel(x, 1.0).launch(grid=(1, 1, 1), block=(128, 1, 1))
    add_kernel(x, y).launch(grid=(2, 1, 1), block=(32, 1, 1))
@cute.jit
def launch_if(x: cute.Tensor, n: cutlass.Int32):
    if n > 0:
        fill_kernel(x, 2.0).launch(grid=(n, 1, 1), block=(64, 1, 1))
def call_kernels():
    x, y = array(1000), array(1000)
    static, dynamic = from_dlpack(x), from_dlpack(x, assumed_align=16).mark_layout_dynamic()
    fill(dynamic, 2.5, cuda.CUstream(64))
    fill(dynamic, 3.5, cuda.CUstream(128))
    fill(static, 4.5, cuda.CUstream(0))
    compiled = cute.compile(fill, dynamic, cutlass.Float32(0), cuda.CUstream(0))
    compiled(dynamic, 5.5, cuda.CUstream(256))
    compiled(from_dlpack(array(64), assumed_align=16).mark_layout_dynamic(), 6.5, cuda.CUstream(256))
    compiled.to(0)(dynamic, 7.5, cuda.CUstream(512))
    fill_and_add(static, from_dlpack(y).mark_layout_dynamic())
    launch_if(dynamic, 0)
    launch_if(dynamic, 3)
"""
