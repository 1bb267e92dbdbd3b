"""Measure what preparing scales leaves behind in torch's allocator: pages held by nothing but fragments.

``python tests/scales/stranded_pages.py`` prepares eight planes of four layers on the current CUDA device and prints
JSON. The work runs in a child process, because the allocator reads its settings once.
"""

import gc
import json
import os
import subprocess
import sys
import time

ALLOCATOR = "expandable_segments:True,max_split_size_mb:20"
LIMIT_MIB = 40
LAYERS = 4
EXPERTS = 384
SIZES = ((1152, 160, 576, 576), (5120, 18, 5120, 0))
"""Rows, columns, group rows and rotation of both projections of one layer."""


def measure_in_child() -> dict[str, object]:
    """Measure in a process that starts with the allocator's settings."""
    environment = os.environ | {"PYTORCH_CUDA_ALLOC_CONF": ALLOCATOR}
    command = [sys.executable, __file__, "--measure"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    return json.loads(done.stdout)


def measure() -> dict[str, object]:
    """Prepare with private pools and, for comparison, without. ``has_passed`` judges the former."""
    pooled, layer_ms, kept_mib = prepare_layers(is_pooled=True)
    unpooled, _, _ = prepare_layers(is_pooled=False)
    return {
        "stranded_mib": pooled,
        "stranded_without_pools_mib": unpooled,
        "limit_mib": LIMIT_MIB,
        "has_passed": pooled < LIMIT_MIB,
        "kept_mib": kept_mib,
        "layer_encode_ms": layer_ms,
    }


def prepare_layers(*, is_pooled: bool) -> tuple[float, list[float], float]:
    """Return stranded MiB, the time to encode each layer in ms, and the MiB of all storage kept."""
    import torch

    before = idle_bytes()
    generator = torch.Generator(device="cuda").manual_seed(3)
    kept, layer_ms = [], []
    for _ in range(LAYERS):
        projections = [prepare(sizes, generator, is_pooled=is_pooled) for sizes in SIZES]
        kept += [inline for inline, _ in projections]
        layer_ms.append(round(sum(ms for _, ms in projections), 2))
    stranded = (idle_bytes() - before) / 2**20
    return round(stranded, 2), layer_ms, round(sum(i.storage.numel() for i in kept) / 2**20, 2)


def prepare(sizes, generator, *, is_pooled: bool):
    """Make one projection's scales as a loader does: logical scales and native planes are only passing through."""
    import torch

    from planfreeze.kernels.scales.geometry import ScaleGeometry
    from planfreeze.kernels.scales.inline import encode
    from planfreeze.kernels.scales.native import native_plane
    from planfreeze.kernels.scales.pools import ScratchPool
    from planfreeze.kernels.scales.synthetic import synthetic_scales

    rows, columns, group_rows, rotation = sizes
    geometry = ScaleGeometry(rows=rows, columns=columns, group_rows=group_rows)
    # The pool of a CPU is the ordinary allocator: the same work without a pool.
    pool = ScratchPool(generator.device if is_pooled else torch.device("cpu"))
    with pool.use():
        plane = native_plane(geometry, synthetic_scales(geometry, EXPERTS, generator), rotation=rotation)
    torch.cuda.synchronize()
    start = time.perf_counter()
    inline = encode(geometry, plane, pool=pool)
    torch.cuda.synchronize()
    encode_ms = (time.perf_counter() - start) * 1e3
    # The pool, deleted after it, can give the memory back at once.
    del plane
    return inline, encode_ms


def idle_bytes() -> int:
    """Return the bytes torch holds on the device that belong to no tensor."""
    import torch

    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved() - torch.cuda.memory_allocated()


def main(arguments: list[str]) -> int:
    found = measure() if arguments == ["--measure"] else measure_in_child()
    sys.stdout.write(json.dumps(found) + "\n")
    return 0 if found["has_passed"] or arguments else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
