"""Launch the three kernels on a GPU and compare them with torch. Knows nothing of planfreeze.

planfreeze record -o kernels.json -- python run.py
planfreeze build --plan kernels.json --store store
planfreeze run --store store --plan kernels-sm_90a -- python run.py
"""

import sys
import time

import torch
import triton

from kernels import layer_norm_kernel, matmul_kernel, softmax_kernel


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Return the softmax of each row."""
    out = torch.empty_like(x)
    block = triton.next_power_of_2(x.shape[1])
    softmax_kernel[(x.shape[0],)](out, x, x.stride(0), x.shape[1], BLOCK=block, num_warps=8 if block > 2048 else 4)
    return out


def matmul(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return the product of two matrices."""
    (m, k), n = left.shape, right.shape[1]
    out = torch.empty((m, n), device=left.device, dtype=left.dtype)

    def grid(chosen: dict[str, int]) -> tuple[int]:
        return (triton.cdiv(m, chosen["ROWS"]) * triton.cdiv(n, chosen["COLUMNS"]),)

    matmul_kernel[grid](out, left, right, m, n, k, left.stride(0), right.stride(0), out.stride(0))
    return out


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Return each row at mean 0 and variance 1, scaled and shifted."""
    out = torch.empty_like(x)
    layer_norm_kernel[(x.shape[0],)](out, x, weight, bias, x.shape[1], 1e-5, BLOCK=1024)
    return out


def compare(name: str, found: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    """Print the largest difference; exit with 1 when it is more than the tolerance."""
    difference = (found.double() - expected).abs().max().item()
    print(f"{name}: largest difference {difference:.2e}")
    if not difference <= tolerance:
        sys.exit(1)


def main() -> None:
    """Run every kernel at a few shapes."""
    if not torch.cuda.is_available():
        print("this example launches kernels, and there is no CUDA device", file=sys.stderr)
        sys.exit(6)
    started = time.perf_counter()
    torch.manual_seed(0)
    for rows, columns in ((256, 781), (64, 4096)):
        x = torch.randn(rows, columns, device="cuda")
        compare(f"softmax {rows}x{columns}", softmax(x), torch.softmax(x.double(), dim=1), 1e-6)
        weight, bias = torch.randn(columns, device="cuda"), torch.randn(columns, device="cuda")
        expected = torch.nn.functional.layer_norm(x.double(), (columns,), weight.double(), bias.double(), 1e-5)
        compare(f"layer norm {rows}x{columns}", layer_norm(x, weight, bias), expected, 1e-4)
    for m, n, k in ((512, 512, 512), (384, 640, 200)):
        left = torch.randn(m, k, device="cuda", dtype=torch.float16)
        right = torch.randn(k, n, device="cuda", dtype=torch.float16)
        compare(f"matmul {m}x{n}x{k}", matmul(left, right), left.double() @ right.double(), 0.1)
    torch.cuda.synchronize()
    print(f"seconds {time.perf_counter() - started:.2f}")


if __name__ == "__main__":
    main()
