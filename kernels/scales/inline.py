"""Inline scale storage: four selector bits a row and tile in place of four scale bytes.

Nearly all scales of a row are one of two neighbouring values, its base and base + 1. A tile block of 96 bytes says
which, for 128 rows and 4 columns: a nibble a slot, a header word, seven records for scales that are neither. A tile
with more of them is kept verbatim as a raw tile, and its header holds the raw tile's number beside the sign bit. All
words are little-endian. The three parts of a projection's storage follow each other in one buffer: tile blocks, base
blocks, raw tiles.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from planfreeze.errors import InvalidScales, ScalesDiffer
from planfreeze.kernels.scales.geometry import (
    MAX_RECORDS,
    MAX_SCALE,
    RAW_TILE_BYTES,
    TILE_BLOCK_BYTES,
    TILE_ROWS,
    ScaleGeometry,
)
from planfreeze.kernels.scales.native import (
    check_plane,
    expert_chunks,
    logical_scales,
    plane_of_tiles,
    staged_tiles,
)
from planfreeze.kernels.scales.pools import ScratchPool
from planfreeze.kernels.scales.storage import InlineScales

__all__ = ["InlineScales", "decode", "encode", "verify"]

SELECTOR_BYTES = 64
HEADER_WORD = 16
"""Word of a tile block; its records are the words after it."""
RAW_FLAG = -(2**31)
RAW_NUMBER = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What the first pass over a plane finds: bases per slot, a header per tile, and the count of raw tiles."""

    bases: Tensor
    headers: Tensor
    raw_tiles: int


def encode(geometry: ScaleGeometry, plane: Tensor, *, pool: ScratchPool | None = None) -> InlineScales:
    """Encode native planes and verify the result.

    Parameters
    ----------
    geometry : ScaleGeometry
        Geometry of one expert.
    plane : Tensor
        ``(experts, rows * columns)`` uint8, contiguous, on any device; bytes 0..247.
    pool : ScratchPool, optional
        Where intermediates come from; by default a pool of this call. Do not call this inside ``pool.use()``: the
        result would keep the pool's memory.

    Returns
    -------
    InlineScales
        On the device of the plane. Its storage is allocated once, at its exact size. The same plane gives the same
        bytes on every device.

    Raises
    ------
    InvalidScales
        The plane has another type or shape, or holds a byte above 247.
    ScalesDiffer
        The result does not decode to the plane.

    Notes
    -----
    A row's base is the byte b with the most scales of b or b + 1, the smallest such b. So a constant row of v > 0 has
    base v - 1 and every selector set. The host waits for the device: this is for weight preparation.
    """
    check_plane(geometry, plane)
    pool = pool or ScratchPool(plane.device)
    with pool.use():
        found = survey(geometry, plane)
    size_bytes = geometry.inline_bytes(len(plane), found.raw_tiles)
    inline = InlineScales(
        geometry=geometry,
        experts=len(plane),
        storage=torch.zeros(size_bytes, dtype=torch.uint8, device=plane.device),
        raw_tiles=found.raw_tiles,
    )
    with pool.use():
        write(inline, plane, found)
    # The pool returns its memory only when nothing in it is alive.
    del found
    verify(inline, plane, pool=pool)
    return inline


def decode(inline: InlineScales, *, first: int = 0, last: int | None = None) -> Tensor:
    """Decode the native planes of the experts ``first`` .. ``last - 1``, by default of all.

    Returns
    -------
    Tensor
        ``(last - first, rows * columns)`` uint8 on the device of the storage.

    Raises
    ------
    InvalidScales
        The range is empty or not of these experts, or a header counts more than seven records or names a raw tile
        that is not there.
    """
    last = inline.experts if last is None else last
    if not 0 <= first < last <= inline.experts:
        raise InvalidScales(f"experts {first}..{last - 1} are not a range of 0..{inline.experts - 1}")
    geometry = inline.geometry
    plane = torch.empty(last - first, geometry.native_bytes(1), dtype=torch.uint8, device=inline.storage.device)
    pool = ScratchPool(inline.storage.device)
    for start, end in decode_chunks(geometry, last - first):
        with pool.use():
            plane_of_tiles(geometry, rebuild(inline, first + start, first + end), plane[start:end])
    return plane


def verify(inline: InlineScales, plane: Tensor, *, pool: ScratchPool | None = None) -> None:
    """Compare what the storage decodes to with the native planes, byte for byte.

    Raises
    ------
    InvalidScales
        The plane has another type, shape or number of experts, or a header is out of range.
    ScalesDiffer
        A byte differs; the error names the first.
    """
    geometry = inline.geometry
    check_plane(geometry, plane)
    if len(plane) != inline.experts:
        raise InvalidScales(f"the plane has {len(plane)} experts, the storage {inline.experts}")
    pool = pool or ScratchPool(plane.device)
    for first, last in decode_chunks(geometry, inline.experts):
        with pool.use():
            decoded = torch.empty_like(plane[first:last])
            plane_of_tiles(geometry, rebuild(inline, first, last), decoded)
            is_equal = torch.equal(decoded, plane[first:last])
            if not is_equal:
                expert, offset = (decoded != plane[first:last]).nonzero()[0].tolist()
                raise ScalesDiffer(
                    first + expert, offset, int(plane[first + expert, offset]), int(decoded[expert, offset])
                )
            del decoded


def survey(geometry: ScaleGeometry, plane: Tensor) -> Survey:
    """Choose all bases, and the header of every tile. Raw tiles are numbered in (expert, tile) order."""
    check_range(plane)
    experts, device = len(plane), plane.device
    bases = torch.zeros(experts, geometry.row_blocks, TILE_ROWS, dtype=torch.uint8, device=device)
    counts = torch.empty(experts, geometry.tiles, dtype=torch.int32, device=device)
    # The histogram and its pair sums, and the 64-bit indices that fill it.
    expert_bytes = geometry.rows * 2 * 256 * 4 + 8 * geometry.native_bytes(1)
    for first, last in expert_chunks(experts, expert_bytes):
        part = plane[first:last]
        bases[first:last] = slot_bases(geometry, row_bases(geometry, part))
        _, is_exception = classify(geometry, staged_tiles(geometry, part), bases[first:last])
        counts[first:last] = is_exception.flatten(2).sum(-1, dtype=torch.int32)
    counts = counts.view(-1)
    is_raw = counts > MAX_RECORDS
    numbers = is_raw.cumsum(0, dtype=torch.int32)
    return Survey(
        bases=bases,
        headers=torch.where(is_raw, numbers - 1 + RAW_FLAG, counts),
        raw_tiles=int(numbers[-1]),
    )


def check_range(plane: Tensor) -> None:
    if int(plane.max()) > MAX_SCALE:
        first = int((plane.view(-1) > MAX_SCALE).to(torch.uint8).argmax())
        expert, offset = divmod(first, plane.shape[1])
        raise InvalidScales(
            f"byte {offset} of expert {expert} is {int(plane[expert, offset])}: native planes hold 0..{MAX_SCALE}"
        )


def row_bases(geometry: ScaleGeometry, plane: Tensor) -> Tensor:
    """Return [experts, rows]: the base of every native row."""
    rows = logical_scales(geometry, plane).view(-1, geometry.columns).long()
    histogram = torch.zeros(len(rows), 256, dtype=torch.int32, device=plane.device)
    histogram.scatter_add_(1, rows, torch.ones((), dtype=torch.int32, device=plane.device).expand_as(rows))
    pairs = histogram[:, :-1] + histogram[:, 1:]
    # torch documents argmax as the first of equal maxima.
    return pairs.argmax(1).to(torch.uint8).view(len(plane), geometry.rows)


def slot_bases(geometry: ScaleGeometry, bases: Tensor) -> Tensor:
    """Bring [experts, rows] into slot order, [experts, row blocks, 128]; slots without a row hold 0."""
    groups = bases.view(len(bases), geometry.groups, geometry.group_rows)
    padding = geometry.row_tiles * TILE_ROWS - geometry.group_rows
    tiles = torch.nn.functional.pad(groups, (0, padding)).view(len(bases), geometry.row_blocks, 4, 4, 8)
    return tiles.transpose(3, 4).reshape(len(bases), geometry.row_blocks, TILE_ROWS)


def classify(geometry: ScaleGeometry, staged: Tensor, bases: Tensor) -> tuple[Tensor, Tensor]:
    """Tell for [experts, tiles, 128, 4] staged bytes which are base + 1, and which are neither that nor the base."""
    tiles = staged.view(len(staged), geometry.row_blocks, geometry.k_tiles, TILE_ROWS, -1)
    base = bases[:, :, None, :, None]
    is_next = tiles == base + 1
    is_exception = (tiles != base).logical_and_(~is_next)
    if geometry.has_column_tail:
        is_exception[:, :, -1, :, geometry.columns % 4 :] = False
    return is_next.view(staged.shape), is_exception.view(staged.shape)


def write(inline: InlineScales, plane: Tensor, found: Survey) -> None:
    """Fill zeroed storage in a second pass over the plane."""
    geometry = inline.geometry
    tile_part, base_part, raw_part = inline.parts()
    base_part.copy_(found.bases.view(-1))
    blocks = tile_part.view(-1, TILE_BLOCK_BYTES)
    words = tile_part.view(torch.int32).view(-1, TILE_BLOCK_BYTES // 4)
    words[:, HEADER_WORD] = found.headers
    raw = raw_part.view(-1, RAW_TILE_BYTES)
    # About eight bytes for each staged byte: itself, the classes, and their products with the mask.
    for first, last in expert_chunks(inline.experts, 8 * RAW_TILE_BYTES * geometry.tiles):
        tiles = slice(first * geometry.tiles, last * geometry.tiles)
        headers = found.headers[tiles]
        staged = staged_tiles(geometry, plane[first:last])
        is_next, is_exception = classify(geometry, staged, found.bases[first:last])
        is_light = (headers >= 0)[:, None]
        blocks[tiles, :SELECTOR_BYTES] = pack_bits(is_next.view(-1, RAW_TILE_BYTES) & is_light)
        write_records(words[tiles], staged.view(-1), is_exception.view(-1, RAW_TILE_BYTES) & is_light)
        heavy = (headers < 0).nonzero().squeeze(1)
        raw.index_copy_(0, (headers[heavy] & RAW_NUMBER).long(), staged.view(-1, RAW_TILE_BYTES)[heavy])


def pack_bits(bits: Tensor) -> Tensor:
    """Pack [tiles, 512] booleans into [tiles, 64] bytes, the first of eight in bit 0.

    The product adds byte i of a little-endian word, a 0 or a 1, to bit 56 + i, and nothing carries into the top byte.
    """
    words = bits.view(torch.uint8).view(torch.int64)
    return (words * 0x0102040810204080).view(torch.uint8).view(len(bits), -1, 8)[..., 7]


def write_records(words: Tensor, staged: Tensor, is_exception: Tensor) -> None:
    """Write the records of [tiles, 24] block words, by rising slot and column. No tile has more than seven."""
    found = is_exception.view(-1).nonzero().squeeze(1)
    tile, place = found // RAW_TILE_BYTES, found % RAW_TILE_BYTES
    counts = is_exception.sum(1)
    rank = torch.arange(len(found), device=found.device) - (counts.cumsum(0) - counts)[tile]
    records = place // 4 | (place % 4) << 8 | staged[found].long() << 16
    words[tile, HEADER_WORD + 1 + rank] = records.to(torch.int32)


def decode_chunks(geometry: ScaleGeometry, experts: int) -> list[tuple[int, int]]:
    """Divide experts so that a rebuild, about four bytes for each staged byte, stays within its bound."""
    return list(expert_chunks(experts, 4 * RAW_TILE_BYTES * geometry.tiles))


def rebuild(inline: InlineScales, first: int, last: int) -> Tensor:
    """Rebuild the staged tiles of a range of experts. Columns that a tail tile does not have hold the base."""
    geometry = inline.geometry
    tile_part, base_part, raw_part = inline.parts()
    tiles = slice(first * geometry.tiles, last * geometry.tiles)
    blocks = tile_part.view(-1, TILE_BLOCK_BYTES)[tiles]
    words = tile_part.view(torch.int32).view(-1, TILE_BLOCK_BYTES // 4)[tiles]
    headers = words[:, HEADER_WORD]
    check_headers(inline, headers, tiles.start)

    selectors = blocks[:, :SELECTOR_BYTES].to(torch.int32)
    nibbles = torch.stack((selectors & 15, selectors >> 4), dim=2)
    # Bit c of a nibble becomes bit 0 of byte c: the factor is 1 + 2^7 + 2^14 + 2^21.
    spread = nibbles.mul_(0x00204081).bitwise_and_(0x01010101)
    staged = spread.view(torch.uint8).view(last - first, geometry.row_blocks, geometry.k_tiles, TILE_ROWS, 4)
    staged += base_part.view(-1, geometry.row_blocks, 1, TILE_ROWS, 1)[first:last]

    flat = staged.view(-1, RAW_TILE_BYTES)
    tile, entry = (torch.arange(MAX_RECORDS, device=headers.device) < headers[:, None]).nonzero().unbind(1)
    records = words[tile, HEADER_WORD + 1 + entry].long()
    flat[tile, (records & 127) * 4 + (records >> 8 & 3)] = (records >> 16 & 255).to(torch.uint8)
    heavy = (headers < 0).nonzero().squeeze(1)
    flat[heavy] = raw_part.view(-1, RAW_TILE_BYTES)[(headers[heavy] & RAW_NUMBER).long()]
    return staged


def check_headers(inline: InlineScales, headers: Tensor, first_tile: int) -> None:
    """Refuse headers that would read outside of the storage."""
    is_bad = (headers > MAX_RECORDS) | ((headers < 0) & ((headers & RAW_NUMBER) >= inline.raw_tiles))
    if bool(is_bad.any()):
        tile = int(is_bad.nonzero()[0])
        raise InvalidScales(
            f"tile {first_tile + tile} has the header {int(headers[tile]) & 0xFFFFFFFF:#010x}: not 0..{MAX_RECORDS} "
            f"records, nor one of {inline.raw_tiles} raw tiles"
        )
