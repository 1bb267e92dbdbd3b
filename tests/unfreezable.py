"""Families that cannot be frozen, as text, and why they are refused."""

UNFREEZABLE = {
    "a value of the environment": (
        *("softmax_triton", 'tl.constexpr(float("-inf"))', 'tl.constexpr(float(len(__import__("os").sep)))'),
        *("sample_softmax", "uses PADDING: it is assigned from a call"),
    ),
    "a marking that the kernel does not have": (
        *("matmul_triton", '@triton.jit(do_not_specialize=["m"])', "@triton.jit"),
        *("sample_matmul", "parameter m is declared in do_not_specialize and the kernel has it specialized"),
    ),
    "an annotation that is not declared": (
        *("layer_norm_triton", "bias, columns,", "bias, columns: tl.int64,"),
        *("sample_layer_norm", "parameter columns is declared without annotation and the kernel has it i64"),
    ),
    "a marked constant": (
        *("layer_norm_triton", "@triton.jit", '@triton.jit(do_not_specialize=["BLOCK"])'),
        *("sample_layer_norm", "parameter BLOCK is declared a constant and the kernel has it in do_not_specialize"),
    ),
    "an autotuner that resets": (
        *("matmul_triton", 'key=["m", "n", "k"]', 'key=["m", "n", "k"], reset_to_zero=["c"]'),
        *("sample_matmul", "its autotuner has reset_to_zero"),
    ),
    "an autotuner that restores": (
        *("matmul_triton", 'key=["m", "n", "k"]', 'key=["m", "n", "k"], restore_value=["c"]'),
        *("sample_matmul", "its autotuner has restore_value"),
    ),
    "a configuration with a hook": (
        *("matmul_triton", "num_warps=8, num_stages=3)", "num_warps=8, num_stages=3, pre_hook=print)"),
        *("sample_matmul", "its autotuner has pre_hook of BLOCK_M: 128"),
    ),
    "a kernel given something else than its function": (
        *("scale_add_cute", "scale_add_kernel(out, x, y, count,", "scale_add_kernel(out, y, x, count,"),
        *("sample_scale_add", "it gives its kernel .*, not its 5 arguments as they came, in order"),
    ),
    "arithmetic around the launch": (
        *("scale_add_cute", "scale_add_kernel(out, x, y, count,", "scale_add_kernel(out, x + 4, y, count,"),
        *("sample_scale_add", "it gives its kernel .*, not its 5 arguments"),
    ),
    "two launches": (
        *(
            "scale_add_cute",
            "    kernel.launch(",
            "    scale_add_kernel(out, x, y, count, factor, per_thread).launch(\n"
            "        grid=[1, 1, 1], block=[THREADS, 1, 1], stream=stream\n    )\n    kernel.launch(",
        ),
        *("sample_scale_add", "it launches 2 kernels"),
    ),
    "a launch under a condition": (
        *(
            "scale_add_cute",
            "    kernel = scale_add_kernel(out, x, y, count, factor, per_thread)\n    kernel.launch(",
            "    if count > 5:\n        scale_add_kernel(out, x, y, count, factor, per_thread).launch(",
        ),
        *("sample_scale_add", "it launches under a condition or in a loop"),
    ),
    "a block that depends on an argument": (
        *("scale_add_cute", "block=[THREADS, 1, 1]", "block=[count, 1, 1]"),
        *("sample_scale_add", "block of its launch is no constant"),
    ),
    "a tensor as parameter": (
        *("scale_add_cute", "def scale_add(out: Int64, x: Int64,", "def scale_add(out: Int64, x: cute.Tensor,"),
        *("sample_scale_add", "parameter x is declared Int64 and the kernel has it as Tensor"),
    ),
    "another type than declared": (
        *("scale_add_cute", "def scale_add(out: Int64, x: Int64,", "def scale_add(out: Int64, x: Int32,"),
        *("sample_scale_add", "parameter x is declared Int64 and the kernel has it as Int32"),
    ),
}
