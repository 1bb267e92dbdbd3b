"""Errors of planfreeze: one class per cause; the message says what happened, why it matters, what to do next."""

from typing import Any


class PlanfreezeError(Exception):
    """Base of every error planfreeze raises on purpose; ``exit_code`` is the command line's status."""

    exit_code = 1


class InvalidPayload(PlanfreezeError):
    """A payload cannot name a program."""

    exit_code = 2

    def __init__(self, family: str, reason: str) -> None:
        super().__init__(family, reason)
        self.family, self.reason = family, reason

    def __str__(self) -> str:
        return (
            f"payload of {self.family}: {self.reason}. A payload names a program by geometry and flags alone. "
            f"Correct the payload, or see: planfreeze plan --json"
        )


class InvalidSetting(PlanfreezeError):
    """An environment variable does not have its type."""

    exit_code = 2

    def __init__(self, name: str, value: str, expected: str) -> None:
        super().__init__(name, value, expected)
        self.name, self.value, self.expected = name, value, expected

    def __str__(self) -> str:
        return f"{self.name}={self.value!r} is not {self.expected}. Run: export {self.name}=... or unset {self.name}"


class UnknownArch(PlanfreezeError):
    """An architecture name is not one planfreeze compiles for."""

    exit_code = 2

    def __init__(self, arch: str, known: tuple[str, ...], near: str | None) -> None:
        super().__init__(arch, known, near)
        self.arch, self.known, self.near = arch, known, near

    def __str__(self) -> str:
        hint = f" Did you mean {self.near}?" if self.near else ""
        return (
            f"{self.arch} is not an architecture planfreeze compiles for.{hint} Programs are made for one exact "
            f"architecture, suffix included. Use one of: {', '.join(self.known)}"
        )


class UnknownFamily(PlanfreezeError):
    """A kernel family is named that no installed module registers."""

    exit_code = 3

    def __init__(self, reference: str) -> None:
        super().__init__(reference)
        self.reference = reference

    def __str__(self) -> str:
        return (
            f"{self.reference} is not a kernel family here. Its arguments and launch rules come from the installed "
            f"package. Install the package that defines it, or build the plan again: planfreeze build"
        )


class UnsupportedGeometry(PlanfreezeError, ValueError):
    """Sizes of a layer that the MoE kernels do not tile."""

    exit_code = 2

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"{self.reason}. The kernels cover a layer in whole tiles and have no slower road for the rest. "
            f"Choose another tensor-parallel size: planfreeze plan --tp N"
        )


class InvalidWeights(PlanfreezeError, ValueError):
    """A weight or scale tensor does not have the shape or type its geometry asks for."""

    exit_code = 2

    def __init__(self, name: str, found: str, expected: str) -> None:
        super().__init__(name, found, expected)
        self.name, self.found, self.expected = name, found, expected

    def __str__(self) -> str:
        return (
            f"{self.name} is {self.found}, not {self.expected}. Packed from it, the experts would hold wrong numbers. "
            f"Pass the tensor as documented: python -m pydoc planfreeze.kernels.moe.weights"
        )


class SourceUnreadable(PlanfreezeError):
    """A kernel module has no Python source text."""

    exit_code = 3

    def __init__(self, module: str) -> None:
        super().__init__(module)
        self.module = module

    def __str__(self) -> str:
        return (
            f"module {self.module} has no Python source file here. A program's key covers the text of its kernel. "
            f"Install the package that holds it, with its sources"
        )


class SourceChanged(PlanfreezeError):
    """A kernel's text changed after it was keyed."""

    def __init__(self, module: str, path: str) -> None:
        super().__init__(module, path)
        self.module, self.path = module, path

    def __str__(self) -> str:
        return (
            f"module {self.module} ({self.path}) is no longer the text its programs were keyed by. A program must "
            f"never be kept under the key of another text. Run the build again: planfreeze build"
        )


class CompilerMissing(PlanfreezeError):
    """A program has to be compiled and its compiler is not installed."""

    exit_code = 6

    def __init__(self, dialect: str, distribution: str) -> None:
        super().__init__(dialect, distribution)
        self.dialect, self.distribution = dialect, distribution

    def __str__(self) -> str:
        return (
            f"{self.distribution} is not installed. Programs of the {self.dialect} dialect are compiled with it and "
            f"their keys hold its fingerprint. Run: pip install 'planfreeze[build]'"
        )


class CompileFailed(PlanfreezeError):
    """A compiler refused a program, or made something else than was planned."""

    def __init__(self, program: str, reason: str) -> None:
        super().__init__(program, reason)
        self.program, self.reason = program, reason

    def __str__(self) -> str:
        return f"{self.program} did not compile: {self.reason}"


class WorkerDied(PlanfreezeError):
    """A compile process ended in the middle of a program."""

    def __init__(self, program: str, status: int, log: str) -> None:
        super().__init__(program, status, log)
        self.program, self.status, self.log = program, status, log

    def __str__(self) -> str:
        cause = f"signal {-self.status}" if self.status < 0 else f"status {self.status}"
        return (
            f"the compile process of {self.program} ended with {cause}. Its program was not made; the others go on. "
            f"Run the build again with --jobs 1 if memory is short.{self.log}"
        )


class DamagedRecord(PlanfreezeError):
    """Stored bytes are no record."""

    exit_code = 4

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"a stored record cannot be read: {self.reason}. Run: planfreeze build"


class DamagedPlan(PlanfreezeError):
    """Stored bytes are no frozen plan."""

    exit_code = 4

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"a frozen plan cannot be read: {self.reason}. Nothing of it is used. Run: planfreeze build"


class PlanTooNew(PlanfreezeError):
    """A frozen plan was written by a later planfreeze."""

    exit_code = 4

    def __init__(self, found: int, known: int) -> None:
        super().__init__(found, known)
        self.found, self.known = found, known

    def __str__(self) -> str:
        return (
            f"the frozen plan has format {self.found}, this planfreeze reads {self.known}. A later format may mean "
            f"something else by the same bytes. Run: pip install --upgrade planfreeze"
        )


class PlanMissing(PlanfreezeError):
    """A frozen plan is asked for that is not in the store."""

    exit_code = 3

    def __init__(self, name: str, store: str, command: str, known: tuple[str, ...] = ()) -> None:
        super().__init__(name, store, command, known)
        self.name, self.store, self.command, self.known = name, store, command, known

    def __str__(self) -> str:
        there = f" It holds: {', '.join(self.known)}." if self.known else ""
        return (
            f"{self.name} is not a frozen plan in {self.store}.{there} Only a frozen plan proves which programs "
            f"exist. Run: {self.command}"
        )


class EmptyPlan(PlanfreezeError):
    """A plan without programs proves nothing."""

    exit_code = 3

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"{self.name} holds no program. There is nothing to resolve, and nothing proven. Run: planfreeze plan"


class MissingPrograms(PlanfreezeError):
    """Programs of a plan are not in the store."""

    exit_code = 3

    def __init__(self, plan: str, total: int, missing: tuple[str, ...], store: str, command: str) -> None:
        super().__init__(plan, total, missing, store, command)
        self.plan, self.total, self.missing, self.store, self.command = plan, total, missing, store, command

    def __str__(self) -> str:
        listed = "".join(f"\n  {program}" for program in self.missing)
        return (
            f"{len(self.missing)} of {self.total} programs of {self.plan} are not in {self.store}. A frozen session "
            f"never compiles. Run: {self.command}{listed}"
        )


class DamagedPrograms(PlanfreezeError):
    """Stored programs of a plan are not what the plan says."""

    exit_code = 4

    def __init__(self, plan: str, total: int, damaged: tuple[str, ...], store: str, command: str) -> None:
        super().__init__(plan, total, damaged, store, command)
        self.plan, self.total, self.damaged, self.store, self.command = plan, total, damaged, store, command

    def __str__(self) -> str:
        listed = "".join(f"\n  {program}" for program in self.damaged)
        return (
            f"{len(self.damaged)} of {self.total} programs of {self.plan} are damaged in {self.store}. Bytes that are "
            f"not the ones that were built are never loaded. Run: {self.command}{listed}"
        )


class KernelsDiffer(PlanfreezeError):
    """The kernels installed here are not the ones a plan was built from."""

    exit_code = 3

    def __init__(self, plan: str, differing: tuple[str, ...], command: str) -> None:
        super().__init__(plan, differing, command)
        self.plan, self.differing, self.command = plan, differing, command

    def __str__(self) -> str:
        return (
            f"{self.plan} was built from other kernels than those installed here: {', '.join(self.differing)}. "
            f"Launch rules and parameters could disagree. Install the version it was built with, or run: "
            f"{self.command}"
        )


class UnplannedProgram(PlanfreezeError):
    """A program is asked for that no prepared plan holds."""

    exit_code = 3

    def __init__(self, program: str, explanation: str) -> None:
        super().__init__(program, explanation)
        self.program, self.explanation = program, explanation

    def __str__(self) -> str:
        return f"{self.program} is in no plan of this session. It is resolved or refused, never compiled.\n{self.explanation}"


class InvalidArgument(PlanfreezeError):
    """An argument of a launch is not what the kernel takes."""

    exit_code = 2

    def __init__(self, family: str, argument: str, reason: str) -> None:
        super().__init__(family, argument, reason)
        self.family, self.argument, self.reason = family, argument, reason

    def __str__(self) -> str:
        return f"{self.family}: argument {self.argument} {self.reason}. The kernel relies on it; nothing was launched"


class DeviceMissing(PlanfreezeError):
    """A device is needed and there is none."""

    exit_code = 6

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"no CUDA device: {self.reason}. Programs are loaded on a device. Without one, check the store with: "
            f"planfreeze replay"
        )


class ExtraMissing(PlanfreezeError):
    """An optional part of the package is needed and not installed."""

    exit_code = 6

    def __init__(self, extra: str, module: str) -> None:
        super().__init__(extra, module)
        self.extra, self.module = extra, module

    def __str__(self) -> str:
        return f"{self.module} is not installed and this needs it. Run: pip install 'planfreeze[{self.extra}]'"


class WrongArch(PlanfreezeError):
    """A program was made for another architecture."""

    exit_code = 4

    def __init__(self, program: str, found: str, expected: str) -> None:
        super().__init__(program, found, expected)
        self.program, self.found, self.expected = program, found, expected

    def __str__(self) -> str:
        return (
            f"{self.program} is made for {self.found}, not for {self.expected}. The driver would refuse it at the "
            f"first launch. Run: planfreeze build --arch {self.expected}"
        )


class SessionState(PlanfreezeError):
    """A session is asked for something its state does not allow."""

    def __init__(self, reason: str, command: str) -> None:
        super().__init__(reason, command)
        self.reason, self.command = reason, command

    def __str__(self) -> str:
        return f"{self.reason}. Call: {self.command}"


class LaunchFailed(PlanfreezeError):
    """The driver refused a load or a launch."""

    def __init__(self, program: str, reason: str) -> None:
        super().__init__(program, reason)
        self.program, self.reason = program, reason

    def __str__(self) -> str:
        return f"{self.program}: the driver says {self.reason}. Nothing ran. See: planfreeze replay --device"


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


class InvalidCapacity(PlanfreezeError):
    """A capacity is not a number of tokens."""

    exit_code = 2

    def __init__(self, value: object) -> None:
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        return (
            f"{self.value!r} is not a capacity: a whole number of tokens from 1 to 2147483647. A plan "
            f"covers the calls of up to its largest capacity. Run: planfreeze plan --capacity 8,64,1536"
        )


class InvalidInlineLimit(PlanfreezeError):
    """The inline limit is not a number of tokens."""

    exit_code = 2

    def __init__(self, value: object) -> None:
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        return (
            f"{self.value!r} is not an inline limit: a whole number of tokens >= 0. It is the largest "
            f"capacity whose grouped kernels read compressed scales. Run: planfreeze plan --inline-limit "
            f"1536"
        )


class UnknownArm(PlanfreezeError):
    """An arm is named that does not exist."""

    exit_code = 2

    def __init__(self, arm: str, known: tuple[str, ...], near: str | None) -> None:
        super().__init__(arm, known, near)
        self.arm, self.known, self.near = arm, known, near

    def __str__(self) -> str:
        hint = f" Did you mean {self.near}?" if self.near else ""
        return (
            f"{self.arm!r} is not an arm.{hint} An arm is a way in which scales reach the kernels. Use "
            f"--arms with one or more of: {', '.join(self.known)}"
        )


class UnavailableArm(PlanfreezeError):
    """A model's weights or their geometry do not allow an arm."""

    exit_code = 2

    def __init__(self, model: str, tp: int, arm: str, reason: str, available: tuple[str, ...]) -> None:
        super().__init__(model, tp, arm, reason, available)
        self.model, self.tp, self.arm, self.reason, self.available = model, tp, arm, reason, available

    def __str__(self) -> str:
        return (
            f"{self.model} at tp {self.tp} has no arm {self.arm}: {self.reason}. Its programs would never "
            f"be used, and no other arm takes its place. Use --arms with: {', '.join(self.available)}"
        )


class UnknownIdType(PlanfreezeError):
    """A type of routing ids is named that does not exist."""

    exit_code = 2

    def __init__(self, id_type: str, known: tuple[str, ...], near: str | None) -> None:
        super().__init__(id_type, known, near)
        self.id_type, self.known, self.near = id_type, known, near

    def __str__(self) -> str:
        hint = f" Did you mean {self.near}?" if self.near else ""
        return (
            f"{self.id_type!r} is not a type of routing ids.{hint} Kernels are compiled per type. Use "
            f"--ids with one or more of: {', '.join(self.known)}"
        )


class InvalidEntryName(PlanfreezeError, ValueError):
    """A digest, key or reference name has the wrong form."""

    exit_code = 2

    def __init__(self, kind: str, name: str, expected: str) -> None:
        super().__init__(kind, name, expected)
        self.kind, self.name, self.expected = kind, name, expected

    def __str__(self) -> str:
        return (
            f"{self.name!r} is no {self.kind}: expected {self.expected}. Names become paths in the store, so "
            f"no other form is taken. List what is there: planfreeze ls"
        )


class StoreMissing(PlanfreezeError):
    """There is no store at a path."""

    exit_code = 3

    def __init__(self, store: str) -> None:
        super().__init__(store)
        self.store = store

    def __str__(self) -> str:
        return f"there is no store at {self.store}. Reading never makes one. Run: planfreeze build --store {self.store}"


class StoreTooNew(PlanfreezeError):
    """A store was written by a later version of planfreeze."""

    exit_code = 4

    def __init__(self, store: str, found: str, readable: str) -> None:
        super().__init__(store, found, readable)
        self.store, self.found, self.readable = store, found, readable

    def __str__(self) -> str:
        return (
            f"{self.store} was written by a later planfreeze: it has format {self.found}, this version reads "
            f"{self.readable}. Its entries could be misread. Update planfreeze, or use another folder: "
            f"planfreeze build --store DIR"
        )


class DamagedStore(PlanfreezeError):
    """A folder is no store, or its format file is damaged."""

    exit_code = 4

    def __init__(self, store: str, reason: str) -> None:
        super().__init__(store, reason)
        self.store, self.reason = store, reason

    def __str__(self) -> str:
        return (
            f"{self.store} cannot be used as a store: {self.reason}. What it holds could be anything. "
            f"Name another folder: planfreeze build --store DIR"
        )


class StoreUnusable(PlanfreezeError):
    """The machine does not let a store be read or written: permissions, space, a read-only file system."""

    exit_code = 6

    def __init__(self, store: str, reason: str, needed_bytes: int = 0) -> None:
        super().__init__(store, reason, needed_bytes)
        self.store, self.reason, self.needed_bytes = store, reason, needed_bytes

    def __str__(self) -> str:
        needed = f" ({self.needed_bytes} bytes needed)" if self.needed_bytes else ""
        return (
            f"store {self.store}: {self.reason}{needed}. What was published before is whole. Make room or "
            f"change the permissions and run again, or use another folder: planfreeze build --store DIR"
        )


class MissingEntry(PlanfreezeError, LookupError):
    """An entry is not in the store."""

    exit_code = 3

    def __init__(self, entry: str, store: str) -> None:
        super().__init__(entry, store)
        self.entry, self.store = entry, store

    def __str__(self) -> str:
        return (
            f"{self.entry} is not in {self.store}. It was never built there or was removed. "
            f"Run: planfreeze build --store {self.store}"
        )


class DamagedEntry(PlanfreezeError):
    """An entry of the store is not what was published."""

    exit_code = 4

    def __init__(self, entry: str, path: str, reason: str) -> None:
        super().__init__(entry, path, reason)
        self.entry, self.path, self.reason = entry, path, reason

    def __str__(self) -> str:
        return (
            f"{self.entry} at {self.path} is damaged: {self.reason}. Wrong bytes would run on the GPU. "
            f"Run: planfreeze verify --repair"
        )


class KeyLocked(PlanfreezeError):
    """Another builder holds a key for longer than the caller waits."""

    exit_code = 1

    def __init__(self, key: str, store: str, holder: str, waited_s: float) -> None:
        super().__init__(key, store, holder, waited_s)
        self.key, self.store, self.holder, self.waited_s = key, store, holder, waited_s

    def __str__(self) -> str:
        return (
            f"{self.holder} has held key {self.key} in {self.store} for {self.waited_s:.1f} s of waiting. "
            f"Compiling it here as well would do the work twice. Wait for that process or end it, then run: "
            f"planfreeze build --store {self.store}"
        )


class UntrustedStore(PlanfreezeError):
    """Others could have written to a store that no root digest proves."""

    exit_code = 4

    def __init__(self, store: str, reason: str) -> None:
        super().__init__(store, reason)
        self.store, self.reason = store, reason

    def __str__(self) -> str:
        return (
            f"store {self.store} is not trusted: {self.reason}. Its programs run with this process's rights "
            f"and no root digest is pinned. Pin it: export PLANFREEZE_PLAN=NAME@sha256:ROOT"
        )


class InvalidCubin(PlanfreezeError, ValueError):
    """Bytes are no cubin planfreeze can read."""

    exit_code = 4

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"not a readable cubin: {self.reason}. A program is launched by what its cubin says of itself. "
            f"Run: planfreeze verify --repair"
        )


class UnexpectedCubin(PlanfreezeError):
    """A cubin is whole but not the program it stands for."""

    exit_code = 4

    def __init__(self, program: str, reason: str) -> None:
        super().__init__(program, reason)
        self.program, self.reason = program, reason

    def __str__(self) -> str:
        return f"{self.program}: {self.reason}. Launching it would pass wrong parameters. Run: planfreeze build"


class GuardAsleep(PlanfreezeError):
    """The guard did not stop a deliberate attempt to compile."""

    exit_code = 5

    def __init__(self, road: str, log: str) -> None:
        super().__init__(road, log)
        self.road, self.log = road, log

    def __str__(self) -> str:
        return (
            f"the guard did not stop a deliberate attempt to compile (road: {self.road}). A replay under it proves "
            f"nothing. Check that the compiler's version is supported: planfreeze --version\n{self.log}"
        )


class CompilationForbidden(PlanfreezeError):
    """A compiler was reached while a guard forbids compiling; ``attempt`` says what it was asked for."""

    exit_code = 5

    def __init__(self, attempt: Any, explanation: str = "") -> None:
        super().__init__(attempt, explanation)
        self.attempt, self.explanation = attempt, explanation

    def __str__(self) -> str:
        step = "" if "Run:" in self.explanation else " Run: planfreeze build, with a plan that holds this program"
        explanation = f" {self.explanation}" if self.explanation else ""
        return f"{self.attempt}. Nothing may be compiled while a guard is armed.{explanation}{step}"


class UnwatchableRoad(PlanfreezeError):
    """A compiler is loaded whose entries are not the ones a guard knows."""

    exit_code = 6

    def __init__(self, road: str, door: str) -> None:
        super().__init__(road, door)
        self.road, self.door = road, door

    def __str__(self) -> str:
        return (
            f"{self.road}: {self.door} does not exist in the installed version. A guard that cannot see a compiler "
            f'would prove nothing. Run: pip install "planfreeze[build]" to get a supported version'
        )


class UnknownRoad(PlanfreezeError):
    """A road to a compiler is named that no guard watches."""

    exit_code = 2

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        super().__init__(name, known)
        self.name, self.known = name, known

    def __str__(self) -> str:
        return f"{self.name} is not a road a guard watches, so it cannot be proven. Use one of: {', '.join(self.known)}"


class UnknownMode(PlanfreezeError):
    """A guard is asked for a mode it does not have."""

    exit_code = 2

    def __init__(self, mode: str, known: tuple[str, ...]) -> None:
        super().__init__(mode, known)
        self.mode, self.known = mode, known

    def __str__(self) -> str:
        return (
            f"{self.mode!r} is not a mode of a guard. A guard that guesses could let a compile pass. "
            f"Use one of: {', '.join(self.known)}"
        )


class InvalidScales(PlanfreezeError, ValueError):
    """Scales, a native plane or inline storage do not have the form their geometry asks for."""

    exit_code = 2

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"{self.reason}. Read as scales of this geometry, the bytes would belong to other weights. "
            f"Pass them as documented: python -m pydoc planfreeze.kernels.scales"
        )


class ScalesDiffer(PlanfreezeError):
    """Inline storage does not decode to the native plane it was made from."""

    exit_code = 4

    def __init__(self, expert: int, offset: int, native: int, decoded: int) -> None:
        super().__init__(expert, offset, native, decoded)
        self.expert, self.offset, self.native, self.decoded = expert, offset, native, decoded

    def __str__(self) -> str:
        return (
            f"expert {self.expert}, native offset {self.offset}: the plane holds {self.native}, inline storage decodes "
            f"to {self.decoded}. A layer served from it would compute with wrong scales. "
            f"Encode the plane again: python -m pydoc planfreeze.kernels.scales.inline"
        )


class DuplicateFamily(PlanfreezeError):
    """Two kernel families have one name."""

    exit_code = 2

    def __init__(self, name: str, known: str, reference: str) -> None:
        super().__init__(name, known, reference)
        self.name, self.known, self.reference = name, known, reference

    def __str__(self) -> str:
        return (
            f"{self.reference} and {self.known} are both families named {self.name}. A payload names its program by "
            f"the family's name, so one would be taken for the other. Change the family_name of one payload class"
        )


class UnparsableSource(PlanfreezeError):
    """The text of a kernel module is not Python that this interpreter reads."""

    exit_code = 3

    def __init__(self, module: str, path: str, reason: str) -> None:
        super().__init__(module, path, reason)
        self.module, self.path, self.reason = module, path, reason

    def __str__(self) -> str:
        return (
            f"module {self.module} ({self.path}) cannot be parsed: {self.reason}. Its imports belong to the key of "
            f"every program made from it. Correct it, or see: python -m py_compile {self.path}"
        )


class ToolchainUnreadable(PlanfreezeError):
    """The files of an installed compiler cannot be listed."""

    exit_code = 6

    def __init__(self, distribution: str, reason: str) -> None:
        super().__init__(distribution, reason)
        self.distribution, self.reason = distribution, reason

    def __str__(self) -> str:
        return (
            f"{self.distribution} is installed but {self.reason}. A key covers the content of the compiler, and a part "
            f"that cannot be hashed is never left out. Run: pip install --force-reinstall {self.distribution}"
        )
