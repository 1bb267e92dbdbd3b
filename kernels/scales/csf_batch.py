"""CSF batch: compressed scales in native order, one selector bit a byte, for decoding before a call.

A scale is the base of its row, base + 1 where its bit is set, or an exception that lists its byte. Bits and exceptions
are addressed by native offset, so that a block of threads decodes a region of a plane from adjacent bits, and knows
from ``task_offsets`` which exceptions are its own. No kernel multiplies with a batch: it is decoded to a native plane
first. :func:`decode` is the reference for that.
"""

import torch
from msgspec import Struct
from torch import Tensor

from planfreeze import errors
from planfreeze.kernels.scales.geometry import MAX_SCALE, TILE_ROWS, ScaleGeometry
from planfreeze.kernels.scales.inline import check_range, classify, pack_bits
from planfreeze.kernels.scales.native import (
    check_plane,
    copy_bytes,
    expert_chunks,
    plane_of_tiles,
    plane_view,
    rows_view,
    staged_tiles,
)
from planfreeze.kernels.scales.pools import ScratchPool

__all__ = ["MAX_NATIVE_BYTES", "TASK_BYTES", "CsfBatch", "decode", "encode", "tasks_per_expert", "verify"]

TASK_BYTES = 8192
"""Region of a native plane that one block of threads decodes."""
MAX_NATIVE_BYTES = 2**24
"""An exception has 24 bits for its native offset."""


class CsfBatch(Struct, frozen=True, kw_only=True, eq=False):
    """Compressed scales of one projection.

    Parameters
    ----------
    geometry : ScaleGeometry
        Geometry of one expert; fewer than 2^24 scales.
    experts : int
        Experts of the batch.
    bases : Tensor
        ``(experts, rows)`` uint8, in native row order, 0..247.
    selectors : Tensor
        ``(experts, rows * columns / 8)`` uint8: bit i % 8 of byte i / 8 belongs to native offset i.
    exceptions : Tensor
        ``(count,)`` uint32, ``native offset | byte << 24``; expert after expert, by rising offset.
    task_offsets : Tensor
        ``(experts, tasks + 1)`` int64: the exceptions of region t of expert e, 8192 native bytes, are those from
        ``task_offsets[e, t]`` up to ``task_offsets[e, t + 1]``.

    Raises
    ------
    InvalidScales
        A tensor has another type or shape, is not contiguous, or they are on different devices.
    """

    geometry: ScaleGeometry
    experts: int
    bases: Tensor
    selectors: Tensor
    exceptions: Tensor
    task_offsets: Tensor

    def __post_init__(self) -> None:
        tasks = tasks_per_expert(self.geometry)
        rows, size = self.geometry.rows, self.geometry.native_bytes(1)
        expected = {
            "bases": (torch.uint8, (self.experts, rows)),
            "selectors": (torch.uint8, (self.experts, size // 8)),
            "exceptions": (torch.uint32, (self.exceptions.numel(),)),
            "task_offsets": (torch.int64, (self.experts, tasks + 1)),
        }
        for name, (dtype, shape) in expected.items():
            part: Tensor = getattr(self, name)
            if part.dtype != dtype or tuple(part.shape) != shape:
                raise errors.InvalidScales(
                    f"{name} are {part.dtype} of shape {tuple(part.shape)}, not {dtype} of {shape}"
                )
            if not part.is_contiguous():
                raise errors.InvalidScales(f"{name} have strides {part.stride()}: they are not contiguous")
            if part.device != self.bases.device:
                raise errors.InvalidScales(f"{name} are on {part.device}, the bases on {self.bases.device}")

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of each part."""
        parts = ("bases", "selectors", "exceptions", "task_offsets")
        return {name: getattr(self, name).numel() * getattr(self, name).itemsize for name in parts}

    @property
    def size_bytes(self) -> int:
        """Bytes of all parts."""
        return sum(self.sizes.values())


def tasks_per_expert(geometry: ScaleGeometry) -> int:
    """Return the regions of 8192 bytes that an expert's native plane has, the last one often smaller.

    Raises
    ------
    InvalidScales
        An expert has 2^24 scales or more.
    """
    size = geometry.native_bytes(1)
    if size >= MAX_NATIVE_BYTES:
        raise errors.InvalidScales(
            f"{geometry.rows} rows of {geometry.columns} columns are {size} scales, not below 2^24"
        )
    return -(-size // TASK_BYTES)


def encode(geometry: ScaleGeometry, plane: Tensor, *, pool: ScratchPool | None = None) -> CsfBatch:
    """Compress native planes and verify the result.

    Parameters
    ----------
    geometry : ScaleGeometry
        Geometry of one expert, with or without tail tiles.
    plane : Tensor
        ``(experts, rows * columns)`` uint8, contiguous, on any device; bytes 0..247.
    pool : ScratchPool, optional
        Where intermediates come from; by default a pool of this call. Do not call this inside ``pool.use()``.

    Returns
    -------
    CsfBatch
        On the device of the plane; the same plane gives the same bytes on every device.

    Raises
    ------
    InvalidScales
        The plane has another type or shape, or holds a byte above 247; or an expert has 2^24 scales or more.
    ScalesDiffer
        The result does not decode to the plane.

    Notes
    -----
    Bases are those of inline storage. Where a row is all 247 its base is 246, so no scale decodes to more than 247.
    """
    check_plane(geometry, plane)
    experts, tasks, device = len(plane), tasks_per_expert(geometry), plane.device
    pool = pool or ScratchPool(device)
    bases = torch.empty(experts, geometry.rows, dtype=torch.uint8, device=device)
    selectors = torch.empty(experts, geometry.native_bytes(1) // 8, dtype=torch.uint8, device=device)
    task_offsets = torch.empty(experts, tasks + 1, dtype=torch.int64, device=device)
    with pool.use():
        check_range(plane)
        parts: list[Tensor] = []
        written = 0
        for first, last in expert_chunks(experts, encode_bytes(geometry)):
            steps, bases[first:last] = native_steps(geometry, plane[first:last])
            selectors[first:last] = pack_bits(steps == 1)
            part, task_offsets[first:last] = find_exceptions(plane[first:last], steps, tasks)
            task_offsets[first:last] += written
            written += len(part)
            parts.append(part)
            del steps, part
    exceptions = torch.empty(written, dtype=torch.int32, device=device)
    with pool.use():
        torch.cat(parts, out=exceptions)
    # The pool returns its memory only when nothing in it is alive.
    del parts
    batch = CsfBatch(
        geometry=geometry,
        experts=experts,
        bases=bases,
        selectors=selectors,
        exceptions=exceptions.view(torch.uint32),
        task_offsets=task_offsets,
    )
    verify(batch, plane, pool=pool)
    return batch


def encode_bytes(geometry: ScaleGeometry) -> int:
    """Return the bytes of intermediates an expert takes where up to half of its scales are exceptions."""
    return 24 * geometry.native_bytes(1) + 40 * TILE_ROWS * geometry.row_blocks


def native_steps(geometry: ScaleGeometry, plane: Tensor) -> tuple[Tensor, Tensor]:
    """Return, in native order, what every scale is above its row's base, and the bases as [experts, rows]."""
    slot_bases, steps = classify(geometry, staged_tiles(geometry, plane))
    native = torch.empty_like(plane)
    plane_of_tiles(geometry, steps, native)
    # slot = 32*chunk + 4*quad + nt holds row 32*chunk + 8*nt + quad.
    by_tile = slot_bases.view(len(plane), geometry.groups, geometry.row_tiles, 4, 8, 4).transpose(4, 5)
    bases = by_tile.reshape(len(plane), geometry.groups, -1)[..., : geometry.group_rows]
    return native, bases.reshape(len(plane), geometry.rows)


def find_exceptions(plane: Tensor, steps: Tensor, tasks: int) -> tuple[Tensor, Tensor]:
    """Return the exceptions as int32, and [experts, tasks + 1] places in them where regions start and end."""
    experts, size = plane.shape
    found = (steps > 1).view(-1).nonzero().squeeze(1)
    regions = (torch.arange(tasks + 1, device=plane.device) * TASK_BYTES).clamp_(max=size)
    starts = torch.arange(experts, device=plane.device)[:, None] * size + regions
    values = plane.view(-1)[found].to(torch.int32) << 24
    return values | (found % size).to(torch.int32), torch.searchsorted(found, starts)


def decode(batch: CsfBatch, *, first: int = 0, last: int | None = None) -> Tensor:
    """Decode the native planes of the experts ``first`` .. ``last - 1``, by default of all.

    Returns
    -------
    Tensor
        ``(last - first, rows * columns)`` uint8 on the device of the batch.

    Raises
    ------
    InvalidScales
        The range is empty or not of these experts, or the batch cannot be decoded.
    """
    last = batch.experts if last is None else last
    if not 0 <= first < last <= batch.experts:
        raise errors.InvalidScales(f"experts {first}..{last - 1} are not a range of 0..{batch.experts - 1}")
    geometry, device = batch.geometry, batch.bases.device
    plane = torch.empty(last - first, geometry.native_bytes(1), dtype=torch.uint8, device=device)
    pool = ScratchPool(device)
    check_offsets(batch)
    for start, end in expert_chunks(last - first, encode_bytes(geometry)):
        with pool.use():
            check_contents(batch, first + start, first + end)
            decode_part(batch, first + start, first + end, plane[start:end])
    return plane


def verify(batch: CsfBatch, plane: Tensor, *, pool: ScratchPool | None = None) -> None:
    """Compare what the batch decodes to with the native planes, byte for byte.

    Raises
    ------
    InvalidScales
        The plane has another type, shape or number of experts, or the batch cannot be decoded.
    ScalesDiffer
        A byte differs; the error names the first.
    """
    check_plane(batch.geometry, plane)
    if len(plane) != batch.experts:
        raise errors.InvalidScales(f"the plane has {len(plane)} experts, the batch {batch.experts}")
    pool = pool or ScratchPool(plane.device)
    check_offsets(batch)
    for first, last in expert_chunks(batch.experts, encode_bytes(batch.geometry)):
        with pool.use():
            check_contents(batch, first, last)
            decoded = torch.empty_like(plane[first:last])
            decode_part(batch, first, last, decoded)
            if not torch.equal(decoded, plane[first:last]):
                expert, offset = (decoded != plane[first:last]).nonzero()[0].tolist()
                native, found = int(plane[first + expert, offset]), int(decoded[expert, offset])
                raise errors.ScalesDiffer(first + expert, offset, native, found, "the CSF batch")
            del decoded


def decode_part(batch: CsfBatch, first: int, last: int, plane: Tensor) -> None:
    """Write the native planes of a range of experts."""
    geometry = batch.geometry
    bases = batch.bases[first:last, :, None].expand(-1, -1, geometry.columns)
    for region in geometry.regions():
        copy_bytes(plane_view(geometry, plane, region), rows_view(geometry, bases, region))
    plane += unpack_bits(batch.selectors[first:last])
    places, values = read_exceptions(batch, first, last)
    plane.view(-1)[places] = values


def unpack_bits(selectors: Tensor) -> Tensor:
    """Return [experts, bytes] as [experts, 8 * bytes] zeros and ones, bit 0 of a byte first."""
    bits = torch.arange(8, dtype=torch.uint8, device=selectors.device)
    return (selectors[..., None] >> bits).bitwise_and_(1).flatten(1)


def read_exceptions(batch: CsfBatch, first: int, last: int) -> tuple[Tensor, Tensor]:
    """Return places in the planes of a range of experts, one behind the other, and the bytes that belong there."""
    size = batch.geometry.native_bytes(1)
    start, end = batch.task_offsets[first, 0], batch.task_offsets[last - 1, -1]
    words = batch.exceptions.view(torch.int32)[int(start) : int(end)].long()
    ends = batch.task_offsets[first:last, -1] - start
    expert = torch.searchsorted(ends, torch.arange(len(words), device=words.device), right=True)
    return expert * size + (words & 0xFFFFFF), (words >> 24 & 0xFF).to(torch.uint8)


def check_offsets(batch: CsfBatch) -> None:
    """Refuse offsets that do not give every exception to one region."""
    offsets, count = batch.task_offsets, len(batch.exceptions)
    is_rising = bool((offsets[:, 1:] >= offsets[:, :-1]).all())
    if not is_rising or not torch.equal(offsets[1:, 0], offsets[:-1, -1]) or int(offsets[0, 0]) != 0:
        raise errors.InvalidScales("task_offsets do not divide the exceptions into adjacent regions")
    if int(offsets[-1, -1]) != count:
        raise errors.InvalidScales(f"task_offsets end at {int(offsets[-1, -1])}, and there are {count} exceptions")


def check_contents(batch: CsfBatch, first: int, last: int) -> None:
    """Refuse experts whose exceptions are out of their regions, or that would decode to scales above 247."""
    places, values = read_exceptions(batch, first, last)
    size, tasks = batch.geometry.native_bytes(1), batch.task_offsets.shape[1] - 1
    ends = batch.task_offsets[first:last, 1:].reshape(-1) - batch.task_offsets[first, 0]
    task = torch.searchsorted(ends, torch.arange(len(places), device=places.device), right=True)
    own = places // size * tasks + places % size // TASK_BYTES
    if bool((places[1:] <= places[:-1]).any()) or not torch.equal(task, own):
        raise errors.InvalidScales(f"exceptions of experts {first}..{last - 1} do not rise inside their regions")
    if bool((values > MAX_SCALE).any()):
        raise errors.InvalidScales(
            f"an exception of experts {first}..{last - 1} is {int(values.max())}, above {MAX_SCALE}"
        )
    check_bases(batch, first, last)


def check_bases(batch: CsfBatch, first: int, last: int) -> None:
    """Refuse bases above 247, and a base of 247 with a selector set."""
    highest = int(batch.bases[first:last].max())
    if highest > MAX_SCALE:
        raise errors.InvalidScales(f"a base of experts {first}..{last - 1} is {highest}, above {MAX_SCALE}")
    if highest < MAX_SCALE:
        return
    geometry = batch.geometry
    bases = (batch.bases[first:last] == MAX_SCALE)[:, :, None].expand(-1, -1, geometry.columns)
    clamped = torch.empty(last - first, geometry.native_bytes(1), dtype=torch.bool, device=bases.device)
    for region in geometry.regions():
        plane_view(geometry, clamped, region).copy_(rows_view(geometry, bases, region))
    if bool((unpack_bits(batch.selectors[first:last]).bool() & clamped).any()):
        raise errors.InvalidScales(f"a base of {MAX_SCALE} in experts {first}..{last - 1} has a selector set")
