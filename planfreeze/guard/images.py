"""Images: whether what a program loads on a device is machine code, or text that the driver would have to compile.

A cubin is an ELF file. A fat binary holds several images behind headers; one with a cubin counts as machine code,
although the driver compiles when that cubin is for another architecture and there is PTX, too. All else, PTX and
LTO IR, makes the driver compile.
"""

import ctypes
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

__all__ = ["is_machine_code", "read_file", "read_image"]

ELF = b"\x7fELF"
FAT_BINARY = bytes.fromhex("50ed55ba")
# What nvcc's code passes: magic, version, address of a fat binary.
WRAPPER = bytes.fromhex("b1436246")
WRAPPER_FORMAT = "<4xIQ"
FAT_HEADER = "<4xHHQ"
# Kind, version, size of this header, size of the image.
IMAGE_HEADER = "<HHIQ"
CUBIN_KIND = 2
MAX_IMAGES = 256

# From an offset and a size to bytes.
Read = Callable[[int, int], bytes]


def read_image(image: object) -> Read | None:
    """Return what reads a loaded image: bytes, any buffer, or an address; None for something else."""
    with suppress(TypeError, ValueError):
        view = memoryview(image).cast("B")  # type: ignore[arg-type]
        return lambda offset, size: bytes(view[offset : offset + size])
    with suppress(TypeError, ValueError):
        address = int(image)  # type: ignore[call-overload]
        # The driver is about to read from this address, too.
        return (lambda offset, size: ctypes.string_at(address + offset, size)) if address else None
    return None


def read_file(path: object) -> Read | None:
    """Return what reads an image in a file, given by text or bytes; None where there is none to read."""
    with suppress(OSError, TypeError, ValueError):
        data = Path(path.decode() if isinstance(path, bytes) else path).read_bytes()  # type: ignore[arg-type]
        return lambda offset, size: data[offset : offset + size]
    return None


def is_machine_code(read: Read) -> bool:
    """Tell whether an image is a cubin or a fat binary with one."""
    magic = read(0, 4)
    if magic == WRAPPER:
        _, address = struct.unpack(WRAPPER_FORMAT, read(0, 16))
        inner = read_image(address)
        return inner is not None and is_machine_code(inner)
    if magic != FAT_BINARY:
        return magic == ELF
    _, offset, size = struct.unpack(FAT_HEADER, read(0, 16))
    end = offset + size
    for _ in range(MAX_IMAGES):
        if offset >= end:
            break
        kind, _, header_bytes, image_bytes = struct.unpack(IMAGE_HEADER, read(offset, 16))
        if kind == CUBIN_KIND:
            return True
        offset += header_bytes + image_bytes
    return False
