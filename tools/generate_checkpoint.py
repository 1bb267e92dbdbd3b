"""Write a checkpoint of random MXFP4 experts whose scales have the statistics published for DeepSeek-V4.1-Flash.

python tools/generate_checkpoint.py FOLDER --model ds41 --layers 0,38,39 --experts 8 --shards 3 --seed 1

FOLDER gets the shards, their index, and ``model.toml``, which describes the model for ``--model``. Every matrix has a
seed of its own, made of ``--seed``, its layer, expert and name: it is the same whatever else the checkpoint holds.
"""

import argparse
import contextlib
import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from checkpoint_defects import DEFECTS, choose_tensor, spoil_checkpoint
from msgspec import Struct
from msgspec.structs import asdict, replace
from progress_bars import show_progress
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from planfreeze import errors
from planfreeze.kernels.moe.checkpoint_layouts import KNOWN_LAYOUTS, CheckpointLayout, MatrixNames
from planfreeze.kernels.moe.checkpoint_shards import INDEX, WHOLE
from planfreeze.kernels.moe.geometry import GROUP
from planfreeze.models import Model, load_model

# Published for 46,080 matrices of 2304 x 160 or 5120 x 72 scales (40 layers, 384 experts, gate, up and down): 0.06 % of
# all scales are exceptions, typically 180 to 240 a matrix; in layer 0 there are 0.54 (gate) and 0.28 (down) in a tile
# of 128 x 4; the worst matrix is down of expert 7 in the last layer with 27.3 %, every tile of it raw; the last five
# layers rise steeply; the last layer's largest plane of a rank has 7,367 raw tiles, of 200 for an expert.
MATRIX_SCALES = 2304 * 160
TYPICAL_EXCEPTIONS = (180, 240)
TILE_SCALES = 128 * 4
FIRST_LAYER_PER_TILE = {"gate": 0.54, "up": 0.54, "down": 0.28}
WORST_EXPERT = 7
WORST_SHARE = 0.273
# 7,367 / 200 and the rest of that layer's raw tiles, over 384 experts.
HEAVY_EXPERTS = {"gate": 1 / 384, "up": 1 / 384, "down": 37 / 384}
# Not published, ours: 20 exceptions a tile make nearly every tile of a heavy matrix raw and keep the overall share;
# each layer before the last has a quarter of the heavy experts of the next.
HEAVY_SHARE = 0.04
HEAVY_DECAY = 4
HEAVY_LAYERS = 5
ROW_BASES = (112, 123)
EXCEPTION_STEPS = (-2, -1, 2, 3)


class Recipe(Struct, frozen=True, kw_only=True):
    """What a checkpoint holds.

    Parameters
    ----------
    model : Model
        Geometry.
    layers : tuple of int
        Layers to write.
    depth : int
        Layers of the model the statistics are meant for: ``depth - 1`` is its last.
    seed : int
        Seed of everything.
    shards : int
        Files; one is written without an index.
    layout : CheckpointLayout
        Names of the tensors.
    is_typed : bool
        Store scales as E8M0 and codes as signed bytes, not both as unsigned bytes.
    """

    model: Model
    layers: tuple[int, ...]
    depth: int = 40
    seed: int = 0
    shards: int = 3
    layout: CheckpointLayout = KNOWN_LAYOUTS[0]
    is_typed: bool = False


class TensorMaker(Struct, frozen=True, kw_only=True):
    """A tensor that is made when it is written."""

    name: str
    is_scale: bool
    make: Callable[[], Tensor]


def write_checkpoint(folder: Path, recipe: Recipe, *, progress: Callable[[int, int], None] | None = None) -> None:
    """Write a checkpoint into a folder, which is made; holds one shard in memory at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    makers = tuple(tensor_makers(recipe))
    weight_map: dict[str, str] = {}
    total_bytes = 0
    for number in range(recipe.shards):
        part = makers[number * len(makers) // recipe.shards : (number + 1) * len(makers) // recipe.shards]
        name = WHOLE if recipe.shards == 1 else f"model-{number + 1:05}-of-{recipe.shards:05}.safetensors"
        tensors = {maker.name: maker.make() for maker in part}
        save_file(tensors, folder / name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(tensors, name)
        total_bytes += sum(tensor.nbytes for tensor in tensors.values())
        if progress is not None:
            progress(number + 1, recipe.shards)
    if recipe.shards > 1:
        index = {"metadata": {"total_size": total_bytes}, "weight_map": weight_map}
        (folder / INDEX).write_text(json.dumps(index, indent=1))
    (folder / "model.toml").write_text(describe_model(recipe.model))


def tensor_makers(recipe: Recipe) -> Iterator[TensorMaker]:
    """Yield every tensor of a checkpoint in the order it is written."""
    layout, every = recipe.layout, range(recipe.model.experts)
    halves = ("up", "gate") if layout.source_order == "up_gate" else ("gate", "up")
    held = (halves,) if layout.is_fused else tuple((half,) for half in halves)
    stored = (*zip(layout.w13, held, strict=True), (layout.w2, ("down",)))
    for layer in recipe.layers:
        for experts in (every,) if layout.is_stacked else tuple(range(expert, expert + 1) for expert in every):
            for names, matrices in stored:
                yield from named_makers(recipe, layer, experts, names, matrices)
    # Something that is no expert, as every checkpoint has.
    norm = partial(torch.ones, recipe.model.hidden, dtype=torch.bfloat16)
    yield TensorMaker(name="model.norm.weight", is_scale=False, make=norm)


def named_makers(
    recipe: Recipe, layer: int, experts: range, names: MatrixNames, matrices: tuple[str, ...]
) -> Iterator[TensorMaker]:
    """Yield codes and scales of the matrices that one tensor holds for some experts."""
    for pattern, make, dtype in (
        (names.weight, matrix_codes, torch.int8),
        (names.scale, matrix_scales, torch.float8_e8m0fnu),
    ):

        def stack(make: Callable[..., Tensor] = make, dtype: torch.dtype = dtype) -> Tensor:
            held = [torch.cat([make(recipe, layer, expert, matrix) for matrix in matrices]) for expert in experts]
            tensor = torch.stack(held) if recipe.layout.is_stacked else held[0]
            return tensor.view(dtype) if recipe.is_typed else tensor

        name = pattern.format(layer=layer, expert=experts.start)
        yield TensorMaker(name=name, is_scale=make is matrix_scales, make=stack)


def matrix_codes(recipe: Recipe, layer: int, expert: int, matrix: str) -> Tensor:
    """Make the FP4 codes of a matrix, uniformly random: ``(rows, K / 2)`` uint8."""
    rows, k = matrix_size(recipe.model, matrix)
    generator = make_generator(recipe, layer, expert, matrix, "codes")
    return torch.randint(0, 256, (rows, k // 2), generator=generator, dtype=torch.uint8)


def matrix_scales(recipe: Recipe, layer: int, expert: int, matrix: str) -> Tensor:
    """Make the scales of a matrix, ``(rows, K / 32)`` uint8: a row's base or the next byte, but for exceptions."""
    rows, k = matrix_size(recipe.model, matrix)
    shape = (rows, k // GROUP)
    generator = make_generator(recipe, layer, expert, matrix, "scales")
    count = count_exceptions(recipe, layer, expert, matrix, generator)
    bases = torch.randint(ROW_BASES[0], ROW_BASES[1] + 1, (rows, 1), generator=generator)
    steps = torch.randint(0, 2, shape, generator=generator)
    places = torch.randperm(steps.numel(), generator=generator)[:count]
    chosen = torch.randint(0, len(EXCEPTION_STEPS), (count,), generator=generator)
    steps.view(-1)[places] = torch.tensor(EXCEPTION_STEPS)[chosen]
    return (bases + steps).to(torch.uint8)


def count_exceptions(recipe: Recipe, layer: int, expert: int, matrix: str, generator: torch.Generator) -> int:
    """Return how many scales of a matrix are neither their row's base nor the next byte."""
    rows, k = matrix_size(recipe.model, matrix)
    scales = rows * (k // GROUP)
    if expert in heavy_experts(recipe, layer, matrix):
        is_worst = (layer, expert, matrix) == (recipe.depth - 1, worst_expert(recipe), "down")
        return round(scales * (WORST_SHARE if is_worst else HEAVY_SHARE))
    if layer == 0:
        return round(scales * FIRST_LAYER_PER_TILE[matrix] / TILE_SCALES)
    low, high = TYPICAL_EXCEPTIONS
    drawn = int(torch.randint(low, high + 1, (), generator=generator))
    return round(scales * drawn / MATRIX_SCALES)


def heavy_experts(recipe: Recipe, layer: int, matrix: str) -> tuple[int, ...]:
    """Return the experts whose matrix has mostly raw tiles: some in the last layer, ever fewer before it."""
    distance = recipe.depth - 1 - layer
    if not 0 <= distance < HEAVY_LAYERS:
        return ()
    count = round(recipe.model.experts * HEAVY_EXPERTS[matrix] / HEAVY_DECAY**distance)
    # A checkpoint of few experts keeps the worst of the last layer.
    count = max(count, int(distance == 0))
    order = torch.randperm(recipe.model.experts, generator=make_generator(recipe, layer, 0, "experts", "heavy"))
    worst = worst_expert(recipe)
    return (worst, *(expert for expert in order.tolist() if expert != worst))[:count]


def worst_expert(recipe: Recipe) -> int:
    return min(WORST_EXPERT, recipe.model.experts - 1)


def matrix_size(model: Model, matrix: str) -> tuple[int, int]:
    """Return rows and K."""
    return (model.hidden, model.intermediate) if matrix == "down" else (model.intermediate, model.hidden)


def make_generator(recipe: Recipe, layer: int, expert: int, matrix: str, kind: str) -> torch.Generator:
    text = f"{recipe.seed}/{layer}/{expert}/{matrix}/{kind}"
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "little")
    return torch.Generator().manual_seed(seed)


def describe_model(model: Model) -> str:
    """Write a model as a file that ``--model`` takes; what programs may take of a GPU is nothing of a checkpoint."""
    stated = {name: value for name, value in asdict(model).items() if name != "budgets"}
    # What JSON writes of text, numbers, switches and lists is TOML as well.
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in stated.items() if value is not None)


def parse_arguments(arguments: Sequence[str] | None) -> tuple[argparse.Namespace, Recipe]:
    """Read the command line."""
    layouts = {layout.name: layout for layout in KNOWN_LAYOUTS}
    parser = argparse.ArgumentParser(description="Write a checkpoint of random MXFP4 experts.")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where to write; made, or empty")
    parser.add_argument("--model", required=True, help="catalog name, TOML file or config.json")
    parser.add_argument("--layers", default="0", help="layers to write, comma separated")
    parser.add_argument("--depth", type=int, default=40, help="layers of the whole model")
    parser.add_argument("--experts", type=int, help="write so many experts, not the model's number")
    parser.add_argument("--shards", type=int, default=3, help="files, at most one per tensor; 1 writes no index")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--layout", choices=layouts, default=KNOWN_LAYOUTS[0].name)
    parser.add_argument("--typed", action="store_true", help="store scales as E8M0 and codes as signed bytes")
    parser.add_argument("--defect", choices=DEFECTS, help="spoil the checkpoint afterwards")
    parser.add_argument("--tensor", help="tensor to spoil; default: the first that fits the defect")
    given = parser.parse_args(arguments)
    with refuse_unwritable(given.folder):
        if given.folder.exists() and (not given.folder.is_dir() or any(given.folder.iterdir())):
            parser.error(f"{given.folder} is not an empty folder")
    layers = [int(part) if part.isdecimal() else -1 for part in given.layers.split(",")]
    if not all(0 <= layer < given.depth for layer in layers):
        parser.error(f"--layers {given.layers}: not numbers of 0..{given.depth - 1} (--depth)")
    if given.shards < 1 or (given.experts is not None and given.experts < 1):
        parser.error("--shards and --experts are at least 1")
    model = load_model(given.model)
    if given.experts is not None:
        model = replace(model, experts=given.experts, top_k=min(model.top_k, given.experts))
    recipe = Recipe(
        model=model,
        layers=tuple(sorted(set(layers))),
        depth=given.depth,
        seed=given.seed,
        shards=given.shards,
        layout=layouts[given.layout],
        is_typed=given.typed,
    )
    makers = tuple(tensor_makers(recipe))
    if given.shards > len(makers):
        parser.error(f"--shards {given.shards}: there are {len(makers)} tensors, and no file is empty")
    try:
        scales = {maker.name: maker.is_scale for maker in makers}
        given.tensor = choose_tensor(scales, given.defect, given.tensor, has_index=given.shards > 1)
    except ValueError as error:
        parser.error(str(error))
    return given, recipe


@contextlib.contextmanager
def refuse_unwritable(folder: Path) -> Iterator[None]:
    """Refuse a folder that the system does not let write.

    Raises
    ------
    CheckpointUnwritable
        In place of OSError and SafetensorError.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise errors.CheckpointUnwritable(str(folder), reason or str(error)) from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the checkpoint the command line describes; return the exit status."""
    try:
        given, recipe = parse_arguments(arguments)
        with refuse_unwritable(given.folder):
            with show_progress("write") as progress:
                write_checkpoint(given.folder, recipe, progress=progress)
            if given.defect is not None:
                spoil_checkpoint(given.folder, given.defect, given.tensor)
    except errors.PlanfreezeError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    sys.stdout.write(f"{given.folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
