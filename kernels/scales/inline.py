"""Inline scale storage: four selector bits a row and tile in place of four scale bytes.

Nearly all scales of a row are one of two neighbouring values, its base and base + 1. A tile block of 96 bytes says
which, for 128 rows and 4 columns: a nibble a slot, a header word, seven records for scales that are neither. A tile
with more of them is kept verbatim as a raw tile, and its header holds the raw tile's number beside the sign bit. All
words are little-endian. The three parts of a projection's storage follow each other in one buffer: tile blocks, base
blocks, raw tiles.
"""

import torch
from msgspec import Struct
from torch import Tensor

from planfreeze import errors
from planfreeze.kernels.scales.geometry import (
    MAX_RECORDS,
    MAX_SCALE,
    RAW_TILE_BYTES,
    SELECTOR_BYTES,
    TILE_BLOCK_BYTES,
    TILE_COLUMNS,
    TILE_ROWS,
    ScaleGeometry,
)
from planfreeze.kernels.scales.native import (
    check_plane,
    expert_chunks,
    plane_of_tiles,
    staged_tiles,
)
from planfreeze.kernels.scales.pools import ScratchPool
from planfreeze.kernels.scales.storage import InlineScales

__all__ = ["InlineScales", "decode", "encode", "verify"]

HEADER_WORD = 16
"""Word of a tile block; its records are the words after it."""
RAW_FLAG = -(2**31)
RAW_NUMBER = 2**31 - 1


class Part(Struct, frozen=True, kw_only=True):
    """Inline storage of a few experts: tile blocks as [tiles, 24] words, bases, raw tiles as [count, 512] bytes."""

    blocks: Tensor
    bases: Tensor
    raw: Tensor


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
        check_range(plane)
        parts = encode_parts(geometry, plane)
    raw_tiles = sum(len(part.raw) for part in parts)
    size_bytes = geometry.inline_bytes(len(plane), raw_tiles)
    inline = InlineScales(
        geometry=geometry,
        experts=len(plane),
        storage=torch.empty(size_bytes, dtype=torch.uint8, device=plane.device),
        raw_tiles=raw_tiles,
    )
    with pool.use():
        assemble(inline, parts)
    # The pool returns its memory only when nothing in it is alive.
    del parts
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
        raise errors.InvalidScales(f"experts {first}..{last - 1} are not a range of 0..{inline.experts - 1}")
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
        raise errors.InvalidScales(f"the plane has {len(plane)} experts, the storage {inline.experts}")
    pool = pool or ScratchPool(plane.device)
    for first, last in decode_chunks(geometry, inline.experts):
        with pool.use():
            decoded = torch.empty_like(plane[first:last])
            plane_of_tiles(geometry, rebuild(inline, first, last), decoded)
            is_equal = torch.equal(decoded, plane[first:last])
            if not is_equal:
                expert, offset = (decoded != plane[first:last]).nonzero()[0].tolist()
                raise errors.ScalesDiffer(
                    first + expert, offset, int(plane[first + expert, offset]), int(decoded[expert, offset])
                )
            del decoded


def check_range(plane: Tensor) -> None:
    if int(plane.max()) > MAX_SCALE:
        first = int((plane.view(-1) > MAX_SCALE).to(torch.uint8).argmax())
        expert, offset = divmod(first, plane.shape[1])
        raise errors.InvalidScales(
            f"byte {offset} of expert {expert} is {int(plane[expert, offset])}: native planes hold 0..{MAX_SCALE}"
        )


def encode_parts(geometry: ScaleGeometry, plane: Tensor) -> list[Part]:
    """Encode all experts, as many at a time as intermediates are allowed for. Together as large as the result."""
    parts: list[Part] = []
    raw_tiles = 0
    for first, last in expert_chunks(len(plane), encode_bytes(geometry)):
        parts.append(encode_part(geometry, plane[first:last], raw_tiles))
        raw_tiles += len(parts[-1].raw)
    return parts


def encode_bytes(geometry: ScaleGeometry) -> int:
    """Return the bytes of intermediates an expert takes: six for each staged byte, forty for each base."""
    return 6 * RAW_TILE_BYTES * geometry.tiles + 40 * TILE_ROWS * geometry.row_blocks


def encode_part(geometry: ScaleGeometry, plane: Tensor, first_raw: int) -> Part:
    """Encode a few experts. Raw tiles are numbered from ``first_raw``, in (expert, tile) order."""
    staged = staged_tiles(geometry, plane)
    bases, steps = classify(geometry, staged)
    blocks = torch.zeros(len(plane) * geometry.tiles, TILE_BLOCK_BYTES // 4, dtype=torch.int32, device=plane.device)
    blocks.view(torch.uint8)[:, :SELECTOR_BYTES] = pack_bits((steps == 1).view(-1, RAW_TILE_BYTES))

    is_exception = (steps > 1).view(-1, RAW_TILE_BYTES)
    del steps
    headers = is_exception.sum(1, dtype=torch.int32)
    heavy = (headers > MAX_RECORDS).nonzero().squeeze(1)
    blocks[heavy] = 0
    is_exception[heavy] = False
    headers[heavy] = 0
    write_records(blocks, headers, staged.view(-1), is_exception)
    headers[heavy] = torch.arange(len(heavy), dtype=torch.int32, device=plane.device) + (first_raw + RAW_FLAG)
    blocks[:, HEADER_WORD] = headers
    return Part(blocks=blocks, bases=bases, raw=staged.view(-1, RAW_TILE_BYTES)[heavy])


def classify(geometry: ScaleGeometry, staged: Tensor) -> tuple[Tensor, Tensor]:
    """Choose all bases of [experts, tiles, 128, 4] staged bytes, and subtract them.

    Returns
    -------
    bases : Tensor
        ``(experts, row blocks, 128)`` uint8; slots without a row have 0.
    steps : Tensor
        uint8 in the shape of ``staged``: 0 where a byte is its base, 1 where it is base + 1, else something above.
        Columns that a tail tile does not have are 0.

    Notes
    -----
    A row is guessed at by the median of three of its scales. Let x, y, z of its C bytes be one below the guess, equal,
    one above. Of the two pairs that hold the guess, the larger covers y + max(x, z). A pair without it covers at most
    x or z, and what is none of the three: C - y - min(x, z). So where x + 2y + z > C the former is the row's best. The
    few other rows get a histogram each.
    """
    tiles = staged.view(len(staged), geometry.row_blocks, geometry.k_tiles, TILE_ROWS, TILE_COLUMNS)
    guess = guess_medians(tiles)
    lowest = guess - 1
    # Bytes below the lowest wrap around, far above the three that are counted. So does the lowest itself below 0.
    steps = tiles - lowest[:, :, None, :, None]
    fill_missing(geometry, steps, 255)
    below, middle, above = (count_per_slot(steps == step) for step in range(3))
    bases = lowest + ((above > below) | (guess == 0))
    doubtful = (below + 2 * middle + above <= geometry.columns).nonzero()
    # Histogram, pair sums, and the bytes with 64-bit indices, within a quarter of the bound: the tiles have the rest.
    for first, last in expert_chunks(len(doubtful), 4 * (2 * 256 * 4 + 10 * TILE_COLUMNS * geometry.k_tiles)):
        expert, row_block, slot = doubtful[first:last].unbind(1)
        rows = tiles[expert, row_block, :, slot].flatten(1)[:, : geometry.columns]
        bases[expert, row_block, slot] = histogram_bases(rows)
    steps -= (bases - lowest)[:, :, None, :, None]
    fill_missing(geometry, steps, 0)
    return bases, steps.view(staged.shape)


def guess_medians(tiles: Tensor) -> Tensor:
    """Return [experts, row blocks, 128]: the median of three scales of every slot."""
    one, two, three = tiles[:, :, 0, :, 0], tiles[:, :, tiles.shape[2] // 2, :, 1], tiles[:, :, -1, :, 0]
    return torch.maximum(torch.minimum(one, two), torch.minimum(torch.maximum(one, two), three))


def fill_missing(geometry: ScaleGeometry, tiles: Tensor, value: int) -> None:
    """Fill the columns that the last K tile does not have."""
    if geometry.has_column_tail:
        tiles[:, :, -1, :, geometry.columns % TILE_COLUMNS :] = value


def count_per_slot(flags: Tensor) -> Tensor:
    """Count [experts, row blocks, K tiles, 128, 4] booleans for every slot, in int32.

    The four of a word are added at once, as four counters of one byte: at most 255 words, or one would carry.
    """
    words = flags.view(torch.int32).squeeze(-1)
    counters = [part.sum(2, dtype=torch.int32).view(torch.uint8) for part in words.split(255, dim=2)]
    return torch.stack(counters).unflatten(-1, (TILE_ROWS, TILE_COLUMNS)).sum((0, -1), dtype=torch.int32)


def histogram_bases(rows: Tensor) -> Tensor:
    """Return the base of every one of [rows, columns] bytes."""
    histogram = torch.zeros(len(rows), 256, dtype=torch.int32, device=rows.device)
    histogram.scatter_add_(1, rows.long(), torch.ones((), dtype=torch.int32, device=rows.device).expand_as(rows))
    # torch documents argmax as the first of equal maxima.
    return (histogram[:, :-1] + histogram[:, 1:]).argmax(1).to(torch.uint8)


def pack_bits(bits: Tensor) -> Tensor:
    """Pack [tiles, 512] booleans into [tiles, 64] bytes, the first of eight in bit 0.

    The product adds byte i of a little-endian word, a 0 or a 1, to bit 56 + i, and nothing carries into the top byte.
    """
    words = bits.view(torch.uint8).view(torch.int64)
    return (words * 0x0102040810204080).view(torch.uint8).view(len(bits), -1, 8)[..., 7]


def write_records(blocks: Tensor, counts: Tensor, staged: Tensor, is_exception: Tensor) -> None:
    """Write ``counts`` records to each of [tiles, 24] block words, by rising slot and column. None has over seven."""
    found = is_exception.view(-1).nonzero().squeeze(1)
    tile, place = found // RAW_TILE_BYTES, found % RAW_TILE_BYTES
    rank = torch.arange(len(found), device=found.device) - (counts.cumsum(0) - counts)[tile]
    records = place // 4 | (place % 4) << 8 | staged[found].long() << 16
    blocks[tile, HEADER_WORD + 1 + rank] = records.to(torch.int32)


def assemble(inline: InlineScales, parts: list[Part]) -> None:
    """Write the parts to the storage, one after the other."""
    tile_part, base_part, raw_part = inline.parts()
    torch.cat([part.blocks.view(torch.uint8).view(-1) for part in parts], out=tile_part)
    torch.cat([part.bases.view(-1) for part in parts], out=base_part)
    torch.cat([part.raw.view(-1) for part in parts], out=raw_part)


def decode_chunks(geometry: ScaleGeometry, experts: int) -> list[tuple[int, int]]:
    """Divide experts so that a rebuild, about three bytes for each staged byte, stays within its bound."""
    return list(expert_chunks(experts, 3 * RAW_TILE_BYTES * geometry.tiles))


def rebuild(inline: InlineScales, first: int, last: int) -> Tensor:
    """Rebuild the staged tiles of a range of experts. Columns that a tail tile does not have hold the base."""
    geometry = inline.geometry
    tile_part, base_part, raw_part = inline.parts()
    tiles = slice(first * geometry.tiles, last * geometry.tiles)
    blocks = tile_part.view(-1, TILE_BLOCK_BYTES)[tiles]
    words = tile_part.view(torch.int32).view(-1, TILE_BLOCK_BYTES // 4)[tiles]
    headers = words[:, HEADER_WORD]
    check_headers(inline, headers, tiles.start)

    selectors = blocks[:, :SELECTOR_BYTES]
    nibbles = torch.stack((selectors & 15, selectors >> 4), dim=2).to(torch.int32)
    # Bit c of a nibble becomes bit 0 of byte c: the factor is 1 + 2^7 + 2^14 + 2^21.
    spread = nibbles.mul_(0x00204081).bitwise_and_(0x01010101)
    # No byte carries, since bases end at 254.
    bases = base_part.view(-1, geometry.row_blocks, 1, TILE_ROWS)[first:last].to(torch.int32) * 0x01010101
    spread.view(last - first, geometry.row_blocks, geometry.k_tiles, TILE_ROWS).add_(bases)
    staged = spread.view(torch.uint8).view(last - first, geometry.tiles, TILE_ROWS, TILE_COLUMNS)

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
        raise errors.InvalidScales(
            f"tile {first_tile + tile} has the header {int(headers[tile]) & 0xFFFFFFFF:#010x}: not 0..{MAX_RECORDS} "
            f"records, nor one of {inline.raw_tiles} raw tiles"
        )
