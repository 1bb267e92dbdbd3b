"""Geometry of scale planes: how the scale bytes of one projection are tiled, and what the tiles cost.

A scale byte (E8M0, the scale 2^(byte-127)) covers 32 consecutive K elements of one weight row: a *column* of the
plane. Rows come in groups that are tiled separately (the first projection has a group of up and one of gate rows, the
second has one group). A tile is up to 128 rows by up to 4 columns; the last row tile of a group may have 64 rows, the
last K tile of a row 2 columns. Imports nothing heavy.
"""

from msgspec import Struct

from planfreeze import errors

__all__ = [
    "BASE_BLOCK_BYTES",
    "MAX_RECORDS",
    "MAX_SCALE",
    "RAW_TILE_BYTES",
    "SELECTOR_BYTES",
    "TILE_BLOCK_BYTES",
    "TILE_COLUMNS",
    "TILE_ROWS",
    "Region",
    "ScaleGeometry",
    "row_of_slot",
    "slot_of_row",
]

TILE_ROWS = 128
TILE_COLUMNS = 4
MAX_SCALE = 247
"""Largest byte of a native plane; larger ones are clamped, so that 0xFF (NaN in E8M0) marks bytes nobody wrote."""
SELECTOR_BYTES = 64
"""Selectors of a tile: a bit for each scale."""
TILE_BLOCK_BYTES = 96
"""Selectors, a header word, seven record words."""
MAX_RECORDS = 7
BASE_BLOCK_BYTES = TILE_ROWS
RAW_TILE_BYTES = TILE_ROWS * TILE_COLUMNS
TAIL_ROWS = TILE_ROWS // 2
TAIL_COLUMNS = TILE_COLUMNS // 2


class Region(Struct, frozen=True, kw_only=True):
    """Tiles of one shape: the same row and column counts, adjacent in every row group.

    Parameters
    ----------
    first_row_tile, row_tiles : int
        Row tiles of the region, counted inside a group.
    tile_rows : int
        Rows of each of its tiles, 128 or 64.
    first_k_tile, k_tiles : int
        K tiles of the region.
    tile_columns : int
        Columns of each of its tiles, 4 or 2.
    """

    first_row_tile: int
    row_tiles: int
    tile_rows: int
    first_k_tile: int
    k_tiles: int
    tile_columns: int


class ScaleGeometry(Struct, frozen=True, kw_only=True):
    """Geometry of the scales of one projection.

    Parameters
    ----------
    rows : int
        Rows of the weight matrix of one expert.
    columns : int
        Scale bytes of one row: K / 32. Even.
    group_rows : int
        Rows that are tiled together: a multiple of 64 that divides ``rows``.

    Raises
    ------
    InvalidScales
        The sizes cannot be tiled.

    Examples
    --------
    >>> geometry = ScaleGeometry(rows=1152, columns=160, group_rows=576)
    >>> geometry.row_blocks, geometry.k_tiles, geometry.offset(1091, 7)
    (10, 40, 174351)
    """

    rows: int
    columns: int
    group_rows: int

    def __post_init__(self) -> None:
        for name in ("rows", "columns", "group_rows"):
            value = getattr(self, name)
            if type(value) is not int or value <= 0:
                raise errors.InvalidScales(f"{name} = {value!r} is not a whole number above 0")
        if self.group_rows % TAIL_ROWS:
            raise errors.InvalidScales(
                f"group_rows = {self.group_rows} is not a multiple of {TAIL_ROWS}, the smallest row tile"
            )
        if self.rows % self.group_rows:
            raise errors.InvalidScales(f"rows = {self.rows} is not a multiple of group_rows = {self.group_rows}")
        if self.columns % TAIL_COLUMNS:
            raise errors.InvalidScales(f"columns = {self.columns} is odd: K is not a multiple of 64")

    @property
    def groups(self) -> int:
        """Row groups of one expert."""
        return self.rows // self.group_rows

    @property
    def row_tiles(self) -> int:
        """Row tiles of one group."""
        return -(-self.group_rows // TILE_ROWS)

    @property
    def row_blocks(self) -> int:
        """Row tiles of one expert. Each owns 128 base bytes, constant over all of K."""
        return self.groups * self.row_tiles

    @property
    def k_tiles(self) -> int:
        """K tiles of one row block."""
        return -(-self.columns // TILE_COLUMNS)

    @property
    def tiles(self) -> int:
        """Tiles of one expert, in (row block, K tile) order."""
        return self.row_blocks * self.k_tiles

    @property
    def has_row_tail(self) -> bool:
        """Whether the last row tile of a group has 64 rows."""
        return self.group_rows % TILE_ROWS != 0

    @property
    def has_column_tail(self) -> bool:
        """Whether the last K tile has 2 columns."""
        return self.columns % TILE_COLUMNS != 0

    def native_bytes(self, experts: int) -> int:
        """Return the size of the native planes of all experts; they have no padding."""
        return experts * self.rows * self.columns

    def tile_bytes(self, experts: int) -> int:
        """Return the size of the first part of inline storage: one block per tile."""
        return experts * self.tiles * TILE_BLOCK_BYTES

    def base_bytes(self, experts: int) -> int:
        """Return the size of the second part of inline storage: one block of bases per row block."""
        return experts * self.row_blocks * BASE_BLOCK_BYTES

    def inline_bytes(self, experts: int, raw_tiles: int = 0) -> int:
        """Return the size of inline storage with ``raw_tiles`` tiles kept verbatim in its third part."""
        return self.tile_bytes(experts) + self.base_bytes(experts) + raw_tiles * RAW_TILE_BYTES

    def offset(self, row: int, column: int) -> int:
        """Return the byte offset of one scale in an expert's native plane.

        Tiles before this one in its group are whole: 128 rows each, and 4 columns each inside a row tile. So the
        offsets of all scales are 0 .. rows*columns-1, each once.
        """
        group, group_row = divmod(row, self.group_rows)
        row_tile, tile_row = divmod(group_row, TILE_ROWS)
        k_tile, tile_column = divmod(column, TILE_COLUMNS)
        height = min(TILE_ROWS, self.group_rows - row_tile * TILE_ROWS)
        width = min(TILE_COLUMNS, self.columns - k_tile * TILE_COLUMNS)
        row_tile_start = (group * self.group_rows + row_tile * TILE_ROWS) * self.columns
        return row_tile_start + k_tile * height * TILE_COLUMNS + tile_row * width + tile_column

    def regions(self) -> tuple[Region, ...]:
        """Return the tiles by shape: whole tiles, then those with a column tail, a row tail, and both."""
        whole_rows, whole_columns = self.group_rows // TILE_ROWS, self.columns // TILE_COLUMNS
        by_rows = ((0, whole_rows, TILE_ROWS), (whole_rows, int(self.has_row_tail), TAIL_ROWS))
        by_columns = ((0, whole_columns, TILE_COLUMNS), (whole_columns, int(self.has_column_tail), TAIL_COLUMNS))
        return tuple(
            Region(
                first_row_tile=row_tile,
                row_tiles=row_tiles,
                tile_rows=tile_rows,
                first_k_tile=k_tile,
                k_tiles=k_tiles,
                tile_columns=tile_columns,
            )
            for row_tile, row_tiles, tile_rows in by_rows
            for k_tile, k_tiles, tile_columns in by_columns
            if row_tiles and k_tiles
        )


def slot_of_row(tile_row: int) -> int:
    """Return the slot of a row of a tile.

    Slot 32*warp + 4*quad + nt holds row 32*warp + 8*nt + quad: the four rows whose products one thread of an
    m16n8k32 (PTX ISA, matrix fragments) accumulates lie in four adjacent slots.
    """
    return tile_row // 32 * 32 + tile_row % 8 * 4 + tile_row // 8 % 4


def row_of_slot(slot: int) -> int:
    """Return the row of a tile that a slot holds."""
    return slot // 32 * 32 + slot % 4 * 8 + slot // 4 % 8
