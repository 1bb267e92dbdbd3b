"""Types of kernel arguments: their names, their sizes, and what Triton calls them."""

from collections.abc import Mapping
from typing import Literal

__all__ = ["INTEGER_LIMITS", "ITEM_BYTES", "TRITON_TYPES", "DType"]

DType = Literal[
    "bool", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "f8e4m3", "f8e5m2", "f16", "bf16", "f32", "f64"
]
ITEM_BYTES: Mapping[str, int] = {
    **dict.fromkeys(("bool", "i8", "u8", "f8e4m3", "f8e5m2"), 1),
    **dict.fromkeys(("i16", "u16", "f16", "bf16"), 2),
    **dict.fromkeys(("i32", "u32", "f32"), 4),
    **dict.fromkeys(("i64", "u64", "f64"), 8),
}
INTEGER_LIMITS: Mapping[str, tuple[int, int]] = {
    **{f"i{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)},
    **{f"u{bits}": (0, 2**bits - 1) for bits in (8, 16, 32, 64)},
}
# The same types as Triton spells them.
TRITON_TYPES: Mapping[str, str] = {name: name for name in ITEM_BYTES} | {
    "bool": "u1",
    "f8e4m3": "fp8e4nv",
    "f8e5m2": "fp8e5",
    "f16": "fp16",
    "f32": "fp32",
    "f64": "fp64",
}
