"""Numbers of PTX: registers as integers of a width, and the floating-point types that are stored in fewer bits."""

from collections.abc import Callable

import numpy as np

E4M3 = np.array(
    [
        np.nan
        if byte & 127 == 127
        else (-1.0 if byte & 128 else 1.0)
        * ((byte & 7) / 8 * 2.0**-6 if not byte & 120 else (1 + (byte & 7) / 8) * 2.0 ** ((byte >> 3 & 15) - 7))
        for byte in range(256)
    ]
)
E2M1 = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def width(kind: str) -> int:
    """Return the bits of a type suffix such as ``u32``."""
    return 1 if kind == "pred" else int(kind[1:])


def signed(values: np.ndarray, bits: int) -> np.ndarray:
    return (values << np.uint64(64 - bits)).view(np.int64) >> (64 - bits)


def floats(values: np.ndarray) -> np.ndarray:
    return values.astype(np.uint32).view(np.float32)


def bits_of(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float32).view(np.uint32).astype(np.uint64)


def round_bf16(values: np.ndarray) -> np.ndarray:
    bits = bits_of(values)
    rounded = (bits + np.uint64(0x7FFF) + (bits >> np.uint64(16) & np.uint64(1))) >> np.uint64(16)
    return np.where(np.isnan(values), np.uint64(0x7FFF), rounded)


def round_e4m3(values: np.ndarray) -> np.ndarray:
    magnitudes = E4M3[:127]
    size = np.minimum(np.abs(values.astype(np.float64)), 448.0)
    low = np.clip(np.searchsorted(magnitudes, size, side="right") - 1, 0, 125)
    below, above = size - magnitudes[low], magnitudes[low + 1] - size
    code = np.where((above < below) | ((above == below) & (low % 2 == 1)), low + 1, low)
    return np.where(np.isnan(values), 127, code | np.where(np.signbit(values), 128, 0)).astype(np.uint64)


COMPARE: dict[str, Callable] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip
INTEGER: dict[str, Callable] = {
    "add": np.add, "sub": np.subtract, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "min": np.minimum, "max": np.maximum,
}  # fmt: skip


def scale_of(words: np.ndarray) -> np.ndarray:
    codes = (words & np.uint64(255)).astype(int)
    return np.where(codes == 255, np.nan, np.exp2(codes - 127.0))
