"""The kernels of this package as families: what their arguments can be. Imports no compiler."""

from planfreeze.declarations import cute_family, derived, integer, named, real, tensor, triton_family
from planfreeze.models import Model

INT_MAX = 2**31 - 1


def next_power_of_two(n):
    return 1 << (n - 1).bit_length()


@triton_family(
    kernel="sample_kernels.softmax_triton:softmax_kernel",
    arguments=(
        tensor("out", "f32", contiguous=False),
        tensor("x", "f32", contiguous=False),
        integer("out_stride", 16, INT_MAX, multiple_of=16),
        integer("x_stride", 16, INT_MAX, multiple_of=16),
        integer("columns", 1, 4096),
    ),
    # As the caller computes it: the variants are those that columns from 1 to 4096 reach.
    constants={"BLOCK": derived("columns", lambda columns: max(next_power_of_two(columns), 1024))},
    num_warps=8,
)
def sample_softmax(scalars, constants):
    """Leave the grid, one block per row, to each launch: the kernel is not told how many rows there are."""


@triton_family(
    kernel="sample_kernels.matmul_triton:matmul_kernel",
    arguments=(
        tensor("a", "f16", elements=lambda s: s["m"] * s["k"]),
        tensor("b", "f16", elements=lambda s: s["k"] * s["n"]),
        tensor("c", "f16", elements=lambda s: s["m"] * s["n"]),
        integer("m", 1, INT_MAX),
        integer("n", 16, 16384, multiple_of=16),
        integer("k", 16, 16384, multiple_of=16),
        integer("a_stride", 16, 16384, multiple_of=16),
        integer("b_stride", 16, 16384, multiple_of=16),
        integer("c_stride", 16, 16384, multiple_of=16),
    ),
    constants={"ACTIVATION": (named("sample_kernels.reductions:identity"), named("sample_kernels.reductions:relu"))},
    # What the autotuner chose, measured once on the device that serves.
    configurations=(
        {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "num_warps": 4, "num_stages": 3},
        {"BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_K": 32, "num_warps": 8, "num_stages": 3},
    ),
    do_not_specialize=("m",),
)
def sample_matmul(scalars, constants):
    return (-(-scalars["m"] // constants["BLOCK_M"]), -(-scalars["n"] // constants["BLOCK_N"]))


@triton_family(
    kernel="sample_kernels.layer_norm_triton:layer_norm_kernel",
    arguments=(
        tensor("out", "f32", alignment=4),
        tensor("x", "f32", alignment=4),
        tensor("weight", "f32"),
        tensor("bias", "f32", optional=True),
        integer("columns", 2, 2048),
        real("epsilon"),
    ),
    constants={"BLOCK": 2048},
)
def sample_layer_norm(scalars, constants):
    """Leave the grid, one block per row, to each launch."""


@cute_family(
    kernel="sample_kernels.scale_add_cute:scale_add",
    arguments=(
        tensor("out", "f32", alignment=4, elements=lambda s: s["count"]),
        tensor("x", "f32", alignment=4, elements=lambda s: s["count"]),
        tensor("y", "f32", alignment=4, elements=lambda s: s["count"]),
        integer("count", 0, INT_MAX),
        real("factor"),
    ),
    constants={"per_thread": (1, 4)},
)
def sample_scale_add(scalars, constants):
    return (-(-scalars["count"] // (128 * constants["per_thread"])),)


@cute_family(
    kernel="sample_kernels.gemm_cute:gemm",
    arguments=(
        tensor("a", "f32", elements=lambda s: s["m"] * s["k"]),
        tensor("b", "f32", elements=lambda s: s["k"] * s["n"]),
        tensor("c", "f32", elements=lambda s: s["m"] * s["n"]),
        *(integer(name, 1, 65536) for name in ("m", "n", "k")),
    ),
    constants={"tile": (16, 32)},
)
def sample_gemm(scalars, constants):
    tile = constants["tile"]
    return (-(-scalars["n"] // tile), -(-scalars["m"] // tile))


def make_model():
    """Return a model whose programs are variants of these kernels, for ``planfreeze build --model sample_model``."""
    return Model(
        name="sample_model",
        hidden=1024,
        intermediate=1024,
        experts=1,
        top_k=1,
        weight_format="mxfp4",
        programs="sample_kernels.families:list_programs",
    )


def list_programs(model, *, tp, target, options):
    return sample_softmax.payloads() + sample_gemm.payloads()
