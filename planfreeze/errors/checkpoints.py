"""Errors of checkpoints: the index, the names of the tensors, what the tensors hold and what is computed of it."""

from planfreeze.errors.base import PlanfreezeError

__all__ = [
    "AmbiguousLayout",
    "ArmsDiffer",
    "CheckpointMissing",
    "CheckpointUnwritable",
    "ExpertsDiffer",
    "InvalidLayout",
    "MalformedIndex",
    "NanScale",
    "OutputNotFinite",
    "RankOutOfRange",
    "TensorMissing",
    "UnexpectedDtype",
    "UnexpectedTensor",
    "UnknownLayer",
    "UnknownLayout",
]

PYDOC_LAYOUTS = "python -m pydoc planfreeze.kernels.moe.checkpoint_layouts"


class CheckpointMissing(PlanfreezeError):
    """There is no checkpoint at a path."""

    exit_code = 3

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return (
            f"there is no checkpoint at {self.path}: {self.reason}. A checkpoint is a folder with "
            f"model.safetensors.index.json and the shards it names, or one .safetensors file. "
            f"Look there: ls {self.path}"
        )


class CheckpointUnwritable(PlanfreezeError):
    """A checkpoint cannot be written to a folder."""

    exit_code = 6

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return (
            f"{self.path} cannot be written: {self.reason}. What is there of the checkpoint is not whole. "
            f"Remove it and name another folder, or look at this one: ls -ld {self.path}"
        )


class MalformedIndex(PlanfreezeError):
    """The index of a checkpoint does not say which shard holds which tensor."""

    exit_code = 4

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return (
            f"{self.path} is not an index of shards: {self.reason}. Without it no tensor can be found. "
            f"Fetch the file again and check it: python -m json.tool {self.path}"
        )


class InvalidLayout(PlanfreezeError, ValueError):
    """A layout does not name the tensors of a layer."""

    exit_code = 2

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name, self.reason = name, reason

    def __str__(self) -> str:
        return (
            f"layout {self.name}: {self.reason}. Its patterns have to name every tensor of a layer exactly once. "
            f"Correct it as documented: {PYDOC_LAYOUTS}"
        )


class UnknownLayout(PlanfreezeError):
    """The tensors of a checkpoint have names that no given layout describes."""

    exit_code = 2

    def __init__(self, path: str, looked_for: tuple[str, ...], found: tuple[str, ...]) -> None:
        super().__init__(path, looked_for, found)
        self.path, self.looked_for, self.found = path, looked_for, found

    def __str__(self) -> str:
        wanted = "".join(f"\n  {pattern}" for pattern in self.looked_for)
        there = ", ".join(self.found) or "no tensor"
        return (
            f"{self.path} has no expert tensors under names known here; it holds, for example: {there}. Which tensor "
            f"is gate, up or down is never guessed. Describe its names as a layout: {PYDOC_LAYOUTS}\n"
            f"Looked for:{wanted}"
        )


class AmbiguousLayout(PlanfreezeError):
    """The tensors of a checkpoint fit more than one layout."""

    exit_code = 2

    def __init__(self, path: str, layouts: tuple[str, ...]) -> None:
        super().__init__(path, layouts)
        self.path, self.layouts = path, layouts

    def __str__(self) -> str:
        return (
            f"{self.path} holds tensors of several layouts: {', '.join(self.layouts)}. Which of them are the weights "
            f"is never guessed. Pass the layout that is meant: {PYDOC_LAYOUTS}"
        )


class UnknownLayer(PlanfreezeError):
    """A layer is asked for that has no experts in the checkpoint."""

    exit_code = 2

    def __init__(self, path: str, layer: int, layers: tuple[int, ...]) -> None:
        super().__init__(path, layer, layers)
        self.path, self.layer, self.layers = path, layer, layers

    def __str__(self) -> str:
        return (
            f"layer {self.layer} of {self.path} has no expert tensors. There is nothing to read. "
            f"Layers with experts: {number_ranges(self.layers)}. Name one of them: --layers {self.layers[0]}"
        )


class RankOutOfRange(PlanfreezeError, ValueError):
    """A rank is not one of the tensor-parallel ranks."""

    exit_code = 2

    def __init__(self, rank: object, tp: int) -> None:
        super().__init__(rank, tp)
        self.rank, self.tp = rank, tp

    def __str__(self) -> str:
        return (
            f"rank {self.rank!r} is not one of 0..{self.tp - 1}. Its slice of the weights does not exist. "
            f"Choose a rank below --tp {self.tp}"
        )


class ExpertsDiffer(PlanfreezeError):
    """A checkpoint has more or fewer experts in a layer than the model."""

    exit_code = 2

    def __init__(self, path: str, layer: int, found: tuple[int, ...] | int, expected: int) -> None:
        super().__init__(path, layer, found, expected)
        self.path, self.layer, self.found, self.expected = path, layer, found, expected

    def __str__(self) -> str:
        # Numbers where names tell them, how many where one tensor holds all.
        held = f"{self.found}" if isinstance(self.found, int) else f"the experts {number_ranges(self.found)}"
        return (
            f"layer {self.layer} of {self.path} has {held}, the model {self.expected} experts. The router would send "
            f"tokens to other experts than were trained, or to none. Name the checkpoint's own model: --model FILE"
        )


class TensorMissing(PlanfreezeError):
    """A tensor of a layer is not in the checkpoint."""

    exit_code = 4

    def __init__(self, tensor: str, layer: int, expert: int | None, shard: str, reason: str) -> None:
        super().__init__(tensor, layer, expert, shard, reason)
        self.tensor, self.layer, self.expert, self.shard, self.reason = tensor, layer, expert, shard, reason

    def __str__(self) -> str:
        expert = "all experts" if self.expert is None else f"expert {self.expert}"
        return (
            f"{self.tensor} (layer {self.layer}, {expert}) is missing: {self.reason}. A layer is read whole or not at "
            f"all. Fetch the shard it should be in again: {self.shard}"
        )


class UnexpectedTensor(PlanfreezeError):
    """A tensor does not have the shape the model asks for."""

    exit_code = 2

    def __init__(self, tensor: str, shard: str, found: str, expected: str) -> None:
        super().__init__(tensor, shard, found, expected)
        self.tensor, self.shard, self.found, self.expected = tensor, shard, found, expected

    def __str__(self) -> str:
        return (
            f"{self.tensor} in {self.shard} is {self.found}, not {self.expected}. A slice of it would hold other "
            f"weights than the rank's. Name the checkpoint's own model: --model FILE"
        )


class UnexpectedDtype(UnexpectedTensor):
    """A tensor has the shape the model asks for, and another element type."""

    exit_code = 4

    def __str__(self) -> str:
        return (
            f"{self.tensor} in {self.shard} is {self.found}, not {self.expected}. It fits the model, but its bytes "
            f"are no MXFP4 codes or scales. Fetch the file again and compare: sha256sum {self.shard}; or convert the "
            f"weights to MXFP4 anew"
        )


class ArmsDiffer(PlanfreezeError):
    """Kernels that read scales inline compute something else than those that read native planes."""

    exit_code = 4

    def __init__(self, tokens: int, row: int, column: int, inline: float, native: float) -> None:
        super().__init__(tokens, row, column, inline, native)
        self.tokens, self.row, self.column, self.inline, self.native = tokens, row, column, inline, native

    def __str__(self) -> str:
        return (
            f"a call of {self.tokens} tokens differs between the arms, first at row {self.row}, column {self.column}: "
            f"inline gives {self.inline}, native {self.native}. Both read the same scales, so one of them is wrong. "
            f"Compare the store's programs with their plan: planfreeze replay"
        )


class OutputNotFinite(PlanfreezeError):
    """A layer computes a NaN or an infinity from ordinary inputs."""

    exit_code = 4

    def __init__(self, arm: str, tokens: int, row: int, column: int, value: float) -> None:
        super().__init__(arm, tokens, row, column, value)
        self.arm, self.tokens, self.row, self.column, self.value = arm, tokens, row, column, value

    def __str__(self) -> str:
        return (
            f"a call of {self.tokens} tokens gives {self.value} at row {self.row}, column {self.column} ({self.arm} "
            f"arm). Inputs were of ordinary size, so scales are damaged or a program is wrong. "
            f"Compare the shards with their published digests: sha256sum *.safetensors"
        )


class NanScale(PlanfreezeError):
    """A scale byte is 255, which is no number in E8M0."""

    exit_code = 4

    def __init__(self, tensor: str, row: int, column: int, expert: int | None) -> None:
        super().__init__(tensor, row, column, expert)
        self.tensor, self.row, self.column, self.expert = tensor, row, column, expert

    def __str__(self) -> str:
        expert = "" if self.expert is None else f"expert {self.expert}, "
        return (
            f"{self.tensor}: the scale at {expert}row {self.row}, column {self.column} is 255, the NaN of E8M0. Every "
            f"output it touches would be NaN. Fetch the file again, or see: tools/validate_checkpoint.py --help"
        )


def number_ranges(numbers: tuple[int, ...]) -> str:
    """Write ascending numbers as ranges: 0..2, 5."""
    first = [number for number in numbers if number - 1 not in numbers]
    last = [number for number in numbers if number + 1 not in numbers]
    pairs = zip(first, last, strict=True)
    return ", ".join(str(low) if low == high else f"{low}..{high}" for low, high in pairs) or "none"
