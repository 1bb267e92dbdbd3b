"""Errors of models: their files, their activation, their sharding."""

from planfreeze.errors.base import PlanfreezeError

__all__ = [
    "InvalidGeometry",
    "InvalidModel",
    "InvalidModelField",
    "InvalidRanks",
    "MalformedModelFile",
    "MissingModelField",
    "NotMixtureOfExperts",
    "UnevenShards",
    "UnknownModel",
    "UnknownModelField",
    "UnsupportedActivation",
    "UntiledModel",
    "UntiledShards",
]


class InvalidModel(PlanfreezeError):
    """A model cannot be planned."""

    exit_code = 2

    def __init__(self, model: str, reason: str) -> None:
        super().__init__(model, reason)
        self.model, self.reason = model, reason

    def __str__(self) -> str:
        return (
            f"model {self.model}: {self.reason}. Its programs are listed by the function that it names. "
            f"Install the package that holds the function, or correct the model's programs field"
        )


class UnknownModel(PlanfreezeError):
    """A model is named that is neither in the catalog nor a file."""

    exit_code = 2

    def __init__(self, source: str, known: tuple[str, ...], near: str | None) -> None:
        super().__init__(source, known, near)
        self.source, self.known, self.near = source, known, near

    def __str__(self) -> str:
        hint = f" Did you mean {self.near}?" if self.near else ""
        return (
            f"{self.source!r} is neither a model of the catalog nor a file.{hint} A plan needs the model's "
            f"geometry. Use one of: {', '.join(self.known)}; the path to a TOML file or a config.json also "
            f"works"
        )


class MalformedModelFile(PlanfreezeError):
    """A model's file cannot be read as what it should be."""

    exit_code = 2

    def __init__(self, path: str, language: str, reason: str) -> None:
        super().__init__(path, language, reason)
        self.path, self.language, self.reason = path, language, reason

    def __str__(self) -> str:
        return (
            f"{self.path} is not valid {self.language}: {self.reason}. A model is read from a .toml file "
            f"with its fields or from a Hugging Face config.json. Correct the file, or name a model of the "
            f"catalog: --model ds41"
        )


class MissingModelField(PlanfreezeError):
    """A model's file lacks a size or name that nothing else states."""

    exit_code = 2

    def __init__(self, path: str, names: tuple[str, ...]) -> None:
        super().__init__(path, names)
        self.path, self.names = path, names

    def __str__(self) -> str:
        return (
            f"{self.path} lacks {' or '.join(self.names)}. Programs are named by the model's geometry, and "
            f"no part of it is guessed. Add the key {self.names[0]} to {self.path}"
        )


class UnknownModelField(PlanfreezeError):
    """A model's file states a field that no model has."""

    exit_code = 2

    def __init__(self, path: str, name: str, known: tuple[str, ...], near: str | None) -> None:
        super().__init__(path, name, known, near)
        self.path, self.name, self.known, self.near = path, name, known, near

    def __str__(self) -> str:
        hint = f" Did you mean {self.near}?" if self.near else ""
        return (
            f"{self.path} states {self.name}, which is not a field of a model.{hint} A field that is "
            f"ignored would change the plan unseen. Remove it, or use one of: {', '.join(self.known)}"
        )


class InvalidModelField(PlanfreezeError):
    """A field of a model has another type or range than it should."""

    exit_code = 2

    def __init__(self, path: str, name: str, value: object, expected: str) -> None:
        super().__init__(path, name, value, expected)
        self.path, self.name, self.value, self.expected = path, name, value, expected

    def __str__(self) -> str:
        return (
            f"{self.path}: {self.name} = {self.value!r} is not {self.expected}. Programs are named by the "
            f"model's geometry. Correct {self.name} in {self.path}"
        )


class NotMixtureOfExperts(PlanfreezeError):
    """A configuration describes a model without routed experts."""

    exit_code = 2

    def __init__(self, path: str, keys: tuple[str, ...]) -> None:
        super().__init__(path, keys)
        self.path, self.keys = path, keys

    def __str__(self) -> str:
        return (
            f"{self.path} counts no routed experts ({', '.join(self.keys)}). The programs planned here are "
            f"those of mixture-of-experts layers; a dense model has none. Use the configuration of a model "
            f"with experts, or a TOML file that names a function listing the model's own programs"
        )


class UnsupportedActivation(PlanfreezeError):
    """The kernels do not compute a model's activation."""

    exit_code = 2

    def __init__(self, path: str, activation: str, reason: str) -> None:
        super().__init__(path, activation, reason)
        self.path, self.activation, self.reason = path, activation, reason

    def __str__(self) -> str:
        return (
            f"{self.path}: the activation is {self.activation}; {self.reason}. The kernels compute gated "
            f"SiLU, optionally clamped, and would return other numbers. Choose a model whose activation is "
            f"silu: planfreeze plan --model ds41"
        )


class InvalidGeometry(PlanfreezeError):
    """A model cannot be planned at a tensor-parallel size; subclasses say why."""

    exit_code = 2


class InvalidRanks(InvalidGeometry):
    """A tensor-parallel size is not a number of ranks."""

    def __init__(self, tp: object) -> None:
        super().__init__(tp)
        self.tp = tp

    def __str__(self) -> str:
        return (
            f"tp = {self.tp!r} is not a whole number >= 1. It is the number of ranks that share every "
            f"expert. Run: planfreeze plan --tp 1"
        )


class UnevenShards(InvalidGeometry):
    """Ranks would hold shares of different widths."""

    def __init__(self, model: str, intermediate: int, tp: int, working: tuple[int, ...]) -> None:
        super().__init__(model, intermediate, tp, working)
        self.model, self.intermediate, self.tp, self.working = model, intermediate, tp, working

    def __str__(self) -> str:
        return (
            f"{self.model} at tp {self.tp}: {self.intermediate} = {self.tp} * "
            f"{self.intermediate // self.tp} + {self.intermediate % self.tp} columns. All ranks run the "
            f"same programs, so their shares have to be equal. {name_ranks(self.working)}"
        )


class UntiledShards(InvalidGeometry):
    """The share of one rank is not made of the kernels' tiles."""

    def __init__(self, model: str, intermediate: int, tp: int, working: tuple[int, ...]) -> None:
        super().__init__(model, intermediate, tp, working)
        self.model, self.intermediate, self.tp, self.working = model, intermediate, tp, working

    def __str__(self) -> str:
        share = self.intermediate // self.tp
        return (
            f"{self.model} at tp {self.tp}: {self.intermediate} / {self.tp} = {share} columns per rank, "
            f"and {share} = {share // 64} * 64 + {share % 64}. The kernels cover a share in tiles of 64 "
            f"columns. {name_ranks(self.working)}"
        )


class UntiledModel(InvalidGeometry):
    """A size that sharding does not change is not one the kernels cover."""

    def __init__(self, model: str, reason: str) -> None:
        super().__init__(model, reason)
        self.model, self.reason = model, reason

    def __str__(self) -> str:
        return (
            f"{self.model}: {self.reason}. The kernels have no road for it at any number of ranks. Choose "
            f"a model of other sizes: planfreeze plan --model ds41"
        )


def name_ranks(working: tuple[int, ...]) -> str:
    """Say which tensor-parallel sizes work."""
    if not working:
        return "No tensor-parallel size works for this model; choose another: planfreeze plan --model ds41"
    return f"Use --tp with one of: {', '.join(map(str, working))}"
