"""Errors of serving: plans that do not resolve, devices, arguments, sessions, launches."""

from planfreeze.errors.base import PlanfreezeError

__all__ = [
    "CapacityExceeded",
    "DamagedPrograms",
    "DeviceMissing",
    "EmptyPlan",
    "ExtraMissing",
    "InvalidArgument",
    "KernelsDiffer",
    "LaunchFailed",
    "LayerReleased",
    "MissingPrograms",
    "PlanMissing",
    "PlansDisagree",
    "SessionState",
    "UnplannedProgram",
    "UnsuitableExperts",
    "UnsupportedDevice",
    "WrongDevice",
]


class PlanMissing(PlanfreezeError):
    """A frozen plan is asked for that is not in the store."""

    exit_code = 3

    def __init__(
        self,
        name: str,
        store: str,
        command: str,
        known: tuple[str, ...] = (),
        near: str | None = None,
        stands_for: str | None = None,
    ) -> None:
        super().__init__(name, store, command, known, near, stands_for)
        self.name, self.store, self.command, self.known, self.near = name, store, command, known, near
        self.stands_for = stands_for

    def __str__(self) -> str:
        hint = f" Did you mean {self.near}?" if self.near else ""
        if self.stands_for is not None:
            is_pinned = "@sha256:" in self.name
            lost = "" if is_pinned else ", which is not there: planfreeze verify --repair makes of it what can be made"
            hint = f" The name stands for {self.stands_for}{lost}."
        there = f" It holds: {', '.join(self.known)}." if self.known else ""
        return (
            f"{self.name} is not a frozen plan in {self.store}.{hint}{there} Only a frozen plan proves which programs "
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
            f"Launch rules and parameters could disagree. Put their folder on PYTHONPATH if it is not, install the "
            f"version it was built with, or run: {self.command}"
        )


class UnplannedProgram(PlanfreezeError):
    """A program is asked for that no prepared plan holds."""

    exit_code = 3

    def __init__(self, program: str, explanation: str) -> None:
        super().__init__(program, explanation)
        self.program, self.explanation = program, explanation

    def __str__(self) -> str:
        return (
            f"{self.program} is in no plan of this session. It is resolved or refused, never compiled.\n"
            f"{self.explanation}"
        )


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


class PlansDisagree(PlanfreezeError):
    """Two plans of one session have different cubins for one payload."""

    exit_code = 3

    def __init__(self, program: str, plan: str, arch: str) -> None:
        super().__init__(program, plan, arch)
        self.program, self.plan, self.arch = program, plan, arch

    def __str__(self) -> str:
        return (
            f"{self.program} has another cubin in {self.plan} than in a plan prepared before, for {self.arch}. "
            f"A session resolves a payload to one program. Build both plans with one toolchain and architecture"
        )


class WrongDevice(PlanfreezeError):
    """A program was made for another architecture than the device's."""

    exit_code = 6

    def __init__(self, program: str, arch: str, device: str, capability: tuple[int, int]) -> None:
        super().__init__(program, arch, device, capability)
        self.program, self.arch, self.device, self.capability = program, arch, device, capability

    def __str__(self) -> str:
        return (
            f"{self.program} is made for {self.arch}; the device is {self.device}, of compute capability "
            f"{self.capability[0]}.{self.capability[1]}. The driver would refuse it. Prepare the plan of the device's "
            f"architecture, or choose another device"
        )


class UnsupportedDevice(PlanfreezeError):
    """The current device is not of an architecture planfreeze compiles for."""

    exit_code = 6

    def __init__(self, capability: tuple[int, int], archs: tuple[str, ...]) -> None:
        super().__init__(capability, archs)
        self.capability, self.archs = capability, archs

    def __str__(self) -> str:
        return (
            f"the device here has compute capability {self.capability[0]}.{self.capability[1]}, which planfreeze "
            f"does not compile for. A plan for another architecture has to be asked for. Add --arch with one of: "
            f"{', '.join(self.archs)}"
        )


class CapacityExceeded(PlanfreezeError):
    """A call has more live tokens than any planned capacity."""

    exit_code = 2

    def __init__(self, tokens: int, largest: int) -> None:
        super().__init__(tokens, largest)
        self.tokens, self.largest = tokens, largest

    def __str__(self) -> str:
        return (
            f"{self.tokens} live tokens, and the largest planned capacity is {self.largest}. Scratch is sized when a "
            f"layer is bound, so nothing was launched. Split the call, or declare the plan with a capacity of "
            f"{self.tokens} or more: python -m pydoc planfreeze.kernels.moe.plan"
        )


class UnsuitableExperts(PlanfreezeError):
    """Experts are bound to a plan that they were not prepared for."""

    exit_code = 2

    def __init__(self, fact: str, planned: object, found: object) -> None:
        super().__init__(fact, planned, found)
        self.fact, self.planned, self.found = fact, planned, found

    def __str__(self) -> str:
        return (
            f"the plan has {self.fact} = {self.planned}, the experts were prepared with {self.fact} = {self.found}. "
            f"Kernels read prepared bytes as they are, and nothing takes the place of what was planned. Prepare them "
            f"for this plan: python -m pydoc planfreeze.kernels.moe.experts"
        )


class LayerReleased(PlanfreezeError):
    """An operator names a layer that does not exist, or not any more."""

    def __init__(self, handle: int) -> None:
        super().__init__(handle)
        self.handle = handle

    def __str__(self) -> str:
        return (
            f"no living MoE layer has the handle {self.handle}. An operator finds its layer by number and does not "
            f"keep it alive; a number means nothing in another process. Keep the layer, and pass its handle: "
            f"bind(plan, session, experts).handle"
        )
