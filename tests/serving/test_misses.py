"""What is said of a program that a plan does not hold: the part of Triton's key that differs."""

import sys

import pytest


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    """A kernel of a module of its own."""
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "missed_kernels.py").write_text(
        "import triton\nimport triton.language as tl\n\n@triton.jit\ndef fill(x, n, BLOCK: tl.constexpr):\n"
        "    tl.store(x + tl.arange(0, BLOCK), n)\n"
    )
    sys.path.insert(0, str(folder))
    try:
        import missed_kernels
    finally:
        sys.path.remove(str(folder))
    return missed_kernels.fill


@pytest.fixture
def describe(kernel):
    """Describe a miss of a plan with one program, with some of its parts as they are not."""
    from triton._C.libtriton import get_cache_invalidating_env_vars
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler.compiler import make_backend

    from planfreeze.compilers.recorded_triton import describe_key
    from planfreeze.recorded.triton_kernel import TritonKernelPayload
    from planfreeze.serving.misses import describe_miss

    payload = TritonKernelPayload(
        kernel="missed_kernels:fill",
        signature=(("x", "*fp32"), ("n", "i32"), ("BLOCK", "constexpr")),
        constants=(((2,), 64),),
        attributes=(((0,), (("tt.divisibility", 16),)), ((1,), (("tt.divisibility", 16),))),
    )

    def make_source(divisible, block, kind):
        attributes = {(0,): [["tt.divisibility", 16]], (1,): [["tt.divisibility", 16]] if divisible else []}
        return ASTSource(kernel, {"x": "*fp32", "n": kind, "BLOCK": "constexpr"}, {(2,): block}, attributes)

    def describe(*, divisible=True, block=64, kind="i32", arch=90, warps=4, environment=None, **parts):
        planned_backend = make_backend(GPUTarget("cuda", 90, 32))
        planned = describe_key(make_source(True, 64, "i32"), planned_backend, {}) | parts
        backend = make_backend(GPUTarget("cuda", arch, 32))
        options = backend.parse_options({"num_warps": warps})
        variables = get_cache_invalidating_env_vars() if environment is None else environment
        return describe_miss([(payload, planned)], make_source(divisible, block, kind), backend, options, variables)

    return describe


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"divisible": False}, "n: i32, divisible by 16 -> i32"),
        ({"block": 128}, "BLOCK: 64 -> 128"),
        ({"block": None}, "BLOCK: 64 -> None"),
        ({"block": object()}, "BLOCK: 64 -> an unnamed object"),
        ({"kind": "i64"}, "n: i32, divisible by 16 -> i64, divisible by 16"),
        ({"warps": 8}, "num_warps: 4 -> 8"),
        ({"arch": 120}, "another architecture or ptxas"),
        ({"environment": {"TRITON_F32_DEFAULT": "ieee"}}, "TRITON_F32_DEFAULT: none -> ieee"),
        ({"source": "0" * 64}, "the text of the kernel or of what it calls"),
        ({"compiler": "0" * 64}, "another Triton, or Triton for another Python"),
        ({}, "nothing that is known of"),
    ],
)
def test_the_part_that_differs_is_named(describe, asked, said):
    message = describe(**asked)
    assert message.startswith("holds fill otherwise; planned -> asked: ")
    assert said in message
    assert message.count(";") == 1 or "arch" in asked


def test_a_kernel_that_no_program_comes_from_is_named(describe, kernel):
    from planfreeze.serving.misses import describe_miss

    class Source:
        fn = kernel

    assert describe_miss([], Source(), None, None, {}) == "holds no program of the kernel fill"


def test_another_triton_or_python_is_refused_at_the_start():
    from planfreeze.errors import UnservablePlan
    from planfreeze.serving.shelf import check_versions

    check_versions("plan", {"triton_version": "3.9.0"}, ("cuda_utils-0.so", "unbuilt.json")[1:], "3.9.0")
    with pytest.raises(UnservablePlan, match=r"built with Triton 3\.9\.0, and 3\.6\.0 is installed"):
        check_versions("plan", {"triton_version": "3.9.0"}, (), "3.6.0")
    with pytest.raises(UnservablePlan, match="for another Python"):
        check_versions("plan", {"triton_version": "3.9.0"}, ("cuda_utils-0.cpython-300-x86_64-linux-gnu.so",), "3.9.0")
