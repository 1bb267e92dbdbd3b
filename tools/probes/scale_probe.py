"""Families ``scale_words`` and ``scale_planes``: what the kernels make of stored scales, written out.

``scale_words`` rebuilds the words of every tile of inline storage the way each thread of an sm_120a kernel does;
``scale_planes`` the fp32 plane of every stage the way the producer warp of an sm_90a kernel does, from native planes or
from inline storage. ``expectations`` computes both from the native plane alone. Neither needs more of an architecture
than asynchronous copies, so both run wherever planfreeze compiles for.
"""

from typing import ClassVar

from planfreeze import errors
from planfreeze.family import Argument, CuteSource, Definition, Grid, LaunchInfo, Scalars, family, pointer, scalar
from planfreeze.kernels.mma.stage_sm_90a import NATIVE_SCALE_BYTES, SCALE_PLANE_BYTES
from planfreeze.kernels.scales.geometry import (
    BASE_BLOCK_BYTES,
    TILE_BLOCK_BYTES,
    TILE_COLUMNS,
    TILE_ROWS,
    ScaleGeometry,
)
from planfreeze.payload import Payload
from planfreeze.target import Target

__all__ = ["ScalePlanesPayload", "ScaleWordsPayload", "paired_geometry", "scale_planes", "scale_words"]

WORDS_THREADS = TILE_ROWS
COPIERS = TILE_BLOCK_BYTES // 16
"""Threads that copy a tile block, 16 bytes each."""
PLANE_ITEMS = TILE_COLUMNS * TILE_ROWS


class ScaleWordsPayload(Payload):
    """Words of every tile, rebuilt per thread.

    Parameters
    ----------
    rows, columns, group_rows : int
        Geometry of one expert, as :class:`~planfreeze.kernels.scales.geometry.ScaleGeometry`.
    copy_thread : int
        First of the six threads that copy a tile block: 0..122.

    Raises
    ------
    InvalidScales
        The sizes cannot be tiled.
    InvalidPayload
        ``copy_thread`` is out of range.
    """

    family_name: ClassVar[str] = "scale_words"
    rows: int
    columns: int
    group_rows: int
    copy_thread: int

    def __post_init__(self) -> None:
        super().__post_init__()
        ScaleGeometry(rows=self.rows, columns=self.columns, group_rows=self.group_rows)
        last = WORDS_THREADS - COPIERS
        if not 0 <= self.copy_thread <= last:
            raise errors.InvalidPayload(self.family_name, f"copy_thread = {self.copy_thread} is not in 0..{last}")


class ScalePlanesPayload(Payload):
    """fp32 planes of every stage, rebuilt per warp.

    Parameters
    ----------
    rows, columns, group_rows : int
        Geometry of one expert: two row groups, or one whose halves are whole 128-row tiles.
    is_inline : bool
        Read inline storage, else the native plane.

    Raises
    ------
    InvalidScales
        The sizes cannot be tiled.
    InvalidPayload
        The rows cannot be paired.
    """

    family_name: ClassVar[str] = "scale_planes"
    rows: int
    columns: int
    group_rows: int
    is_inline: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        geometry = ScaleGeometry(rows=self.rows, columns=self.columns, group_rows=self.group_rows)
        if geometry.groups > 2 or (geometry.groups == 1 and self.rows % (2 * TILE_ROWS)):
            raise errors.InvalidPayload(
                self.family_name,
                f"rows = {self.rows} in groups of {self.group_rows} are neither two groups nor one group of whole "
                f"pairs of {TILE_ROWS}-row tiles: a stage takes 64 rows of each of two groups",
            )


def paired_geometry(rows: int, columns: int, group_rows: int) -> ScaleGeometry:
    """Return the geometry with two row groups, whose tiles, native bytes and inline bytes are the same.

    Halving one group of whole pairs of 128-row tiles moves nothing: both storages are in row tile order.
    """
    return ScaleGeometry(rows=rows, columns=columns, group_rows=min(group_rows, rows // 2))


@family(ScaleWordsPayload, version=1)
def scale_words(payload: ScaleWordsPayload, target: Target) -> Definition:
    """Arguments ``tiles, bases, raw, words, tiles_total``; blocks stride over the tiles of all experts."""
    geometry = ScaleGeometry(rows=payload.rows, columns=payload.columns, group_rows=payload.group_rows)

    def grid(scalars: Scalars, resident_blocks: int) -> Grid:
        return (min(scalars["tiles_total"], resident_blocks), 1, 1)

    return Definition(
        arguments=(
            pointer("tiles", "u8", lambda s: s["tiles_total"] * TILE_BLOCK_BYTES),
            pointer("bases", "u8", lambda s: s["tiles_total"] // geometry.k_tiles * BASE_BLOCK_BYTES),
            pointer("raw", "u8", lambda s: 0),
            pointer("words", "i32", lambda s: s["tiles_total"] * TILE_ROWS),
            scalar("tiles_total"),
        ),
        source=CuteSource(
            kernel="probes.scale_probe_cute:ScaleWords",
            constants=(("columns", payload.columns), ("copy_thread", payload.copy_thread)),
            launch=LaunchInfo(block=(WORDS_THREADS, 1, 1), shared_bytes=TILE_BLOCK_BYTES),
        ),
        grid=grid,
    )


@family(ScalePlanesPayload, version=1)
def scale_planes(payload: ScalePlanesPayload, target: Target) -> Definition:
    """Arguments: the storage, then ``planes, stages_total``; blocks of one warp stride over the stages of all experts.

    The storage is ``scales``, the native plane, or ``tiles, bases, raw``.
    """
    geometry = paired_geometry(payload.rows, payload.columns, payload.group_rows)

    def experts(scalars: Scalars) -> int:
        return scalars["stages_total"] // (geometry.group_rows // 64 * geometry.k_tiles)

    def grid(scalars: Scalars, resident_blocks: int) -> Grid:
        return (min(scalars["stages_total"], resident_blocks), 1, 1)

    storage: tuple[Argument, ...] = (pointer("scales", "u8", lambda s: geometry.native_bytes(experts(s))),)
    if payload.is_inline:
        storage = (
            pointer("tiles", "u8", lambda s: geometry.tile_bytes(experts(s))),
            pointer("bases", "u8", lambda s: geometry.base_bytes(experts(s))),
            pointer("raw", "u8", lambda s: 0),
        )
    return Definition(
        arguments=(
            *storage,
            pointer("planes", "f32", lambda s: s["stages_total"] * PLANE_ITEMS),
            scalar("stages_total"),
        ),
        source=CuteSource(
            kernel="probes.scale_probe_cute:ScalePlanes",
            constants=(
                ("rows", geometry.rows),
                ("columns", geometry.columns),
                ("group_rows", geometry.group_rows),
                ("is_inline", payload.is_inline),
            ),
            launch=LaunchInfo(block=(32, 1, 1), shared_bytes=SCALE_PLANE_BYTES + NATIVE_SCALE_BYTES),
        ),
        grid=grid,
    )
