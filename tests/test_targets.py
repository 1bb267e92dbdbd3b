"""Targets: programs of one kernel for several, devices, drivers and limits of shared memory that are not theirs."""

import importlib
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from planfreeze import target as targets
from planfreeze.builds import build_plans
from planfreeze.cache.store import Store
from planfreeze.device import Device, current_arch
from planfreeze.elf import read_cubin
from planfreeze.errors import (
    DamagedPrograms,
    DriverRefused,
    LaunchFailed,
    UnknownArch,
    UnsupportedDevice,
    WrongDevice,
)
from planfreeze.programs import Program
from planfreeze.resolve import PlanReference, find_plan, resolve_plan
from planfreeze.target import ARCHS, target

KIB = 1024


class FakeDriver:
    """A driver of some age, which loads what it is told to."""

    CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES="shared")

    def __init__(self, load: str = "CUDA_SUCCESS", version: int = 13000) -> None:
        self.load, self.version = load, version
        self.loaded: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        answers = {"cuDriverGetVersion": ("CUDA_SUCCESS", self.version), "cuLibraryLoadData": (self.load, "library")}

        def call(*arguments: Any) -> tuple[Any, Any]:
            if name == "cuLibraryLoadData":
                self.loaded.append(arguments[0])
            said, value = answers.get(name, ("CUDA_SUCCESS", 1))
            return status(said), value

        return call


class Torch:
    """A torch that hands out no views of tensors."""

    Tensor = object


def status(name: str) -> SimpleNamespace:
    return SimpleNamespace(name=name, value=int(name != "CUDA_SUCCESS"))


def fake_device(capability: tuple[int, int], driver: FakeDriver) -> Device:
    """A device with the facts that are given."""
    device = object.__new__(Device)
    facts = {"name": "a faked device", "capability": capability, "driver": driver, "sm_count": 1, "_primary": 1}
    for name, value in facts.items():
        setattr(device, name, value)
    device.dtypes, device.torch, device.torch_device = {"i32": "an integer"}, Torch, "a device"
    return device


@pytest.fixture(scope="module")
def store(toys: Any, toolchains: Any, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store with a plan of one Triton and one CuTe kernel for every architecture."""
    store = Store.open(tmp_path_factory.mktemp("targets") / "store", writable=True)
    payloads = (toys.families.AddPayload(block=64), toys.families.CopyPayload())
    plans = [toys.plan(*payloads, arch=arch) for arch in ARCHS]
    assert build_plans(plans, store, jobs=2, toolchains=toolchains).count("compiled") == 2 * len(ARCHS)
    return store


def resolve(store: Store, arch: str) -> Any:
    return resolve_plan(find_plan(store, PlanReference.parse(f"toys-tp1-{arch}")), store).check()


def test_one_kernel_has_an_entry_of_its_own_for_every_architecture(store: Store) -> None:
    programs = {arch: resolve(store, arch) for arch in ARCHS}
    for found in zip(*programs.values(), strict=True):
        assert len({program.planned.entry.key for program in found}) == len(ARCHS)
        assert len({program.record.blob for program in found}) == len(ARCHS)
        assert [read_cubin(program.cubin).arch for program in found] == list(ARCHS), "as the binary's header says"


# sm_80, sm_86, sm_89, sm_90, sm_100, sm_103, sm_120, sm_121
CAPABILITIES = [(8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (10, 3), (12, 0), (12, 1)]


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_a_plan_is_opened_on_its_own_devices_alone(store: Store, arch: str, capability: tuple[int, int]) -> None:
    for program in resolve(store, arch):
        driver = FakeDriver()
        if capability == target(arch).capability:
            Program(program, fake_device(capability, driver))
            assert driver.loaded == [program.cubin]
            continue
        found = rf"{capability[0]}\.{capability[1]}"
        named = rf"is made for {arch}; the device is a faked device, of compute capability {found}"
        with pytest.raises(WrongDevice, match=named):
            Program(program, fake_device(capability, driver))
        assert driver.loaded == []


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_a_device_is_known_by_its_exact_capability(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]
) -> None:
    bindings = importlib.import_module("cuda.bindings.driver")
    answers = iter(capability)
    monkeypatch.setattr(bindings, "cuInit", lambda flags: (status("CUDA_SUCCESS"),))
    monkeypatch.setattr(bindings, "cuDeviceGetAttribute", lambda *query: (status("CUDA_SUCCESS"), next(answers)))
    known = {facts.capability: arch for arch, facts in ARCHS.items()}
    if capability in known:
        assert current_arch() == known[capability]
        return
    with pytest.raises(UnsupportedDevice, match=rf"{capability[0]}\.{capability[1]}, which planfreeze") as raised:
        current_arch()
    assert all(arch in str(raised.value) for arch in ARCHS)


UNSUPPORTED = ("sm_80", "sm_90", "sm_100a", "sm_100f", "sm_120", "sm_120f", "sm_121a", "sm_999x", "SM_90A", "90a", "")


@pytest.mark.parametrize("arch", UNSUPPORTED)
def test_an_architecture_that_is_not_supported_or_made_up_is_refused_by_name(arch: str) -> None:
    with pytest.raises(UnknownArch) as raised:
        target(arch)
    assert arch in str(raised.value) and all(known in str(raised.value) for known in ARCHS)
    assert raised.value.exit_code == 2


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("version", [12040, 12080, 13000])
@pytest.mark.parametrize("refusal", ["CUDA_ERROR_INVALID_IMAGE", "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"])
def test_a_driver_that_is_too_old_is_refused_at_opening_with_both_versions(
    store: Store, arch: str, version: int, refusal: str
) -> None:
    first, second = resolve(store, arch)
    with pytest.raises(DriverRefused, match=refusal) as raised:
        Program(first, fake_device(target(arch).capability, FakeDriver(refusal, version)))
    assert f"supports CUDA {version // 1000}.{version % 1000 // 10}:" in str(raised.value)
    tools = raised.value.tools
    assert tools is not None or arch == "sm_90a", "the assembler of Triton 3.6 names itself in no cubin for sm_90a"
    made_by = "a CUDA that it does not name" if tools is None else f"CUDA {tools}"
    assert f"made by tools of {made_by}," in str(raised.value)
    assert raised.value.exit_code == 6
    # The store does not depend on the driver: after an upgrade it serves as it is.
    for program in (first, second):
        Program(program, fake_device(target(arch).capability, FakeDriver()))


def test_another_refusal_of_a_load_is_not_told_as_one_of_age(store: Store) -> None:
    with pytest.raises(LaunchFailed, match="CUDA_ERROR_OUT_OF_MEMORY"):
        Program(resolve(store, "sm_90a")[0], fake_device((9, 0), FakeDriver("CUDA_ERROR_OUT_OF_MEMORY")))


def test_a_cubin_of_tools_that_it_does_not_name_is_refused_all_the_same(store: Store) -> None:
    nameless = replace(resolve(store, "sm_90a")[0], cubin=b"\x7fELF")
    with pytest.raises(DriverRefused, match="a CUDA that it does not name"):
        Program(nameless, fake_device((9, 0), FakeDriver("CUDA_ERROR_INVALID_IMAGE")))


@pytest.mark.parametrize("arch", ARCHS)
def test_what_is_loaded_holds_no_ptx_to_fall_back_to(store: Store, arch: str) -> None:
    for program in resolve(store, arch):
        assert program.cubin[:4] == b"\x7fELF", "not a fat binary"
        assert b".version " not in program.cubin and b".visible .entry" not in program.cubin


SIZES_KIB = (48, 99, 100, 227)


def test_opening_lists_every_program_above_the_limit_of_shared_memory(
    toys: Any, toolchains: Any, make_package: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (toys.folder / "toys" / "families.py").read_text().replace("toys", "shared_sizes")
    sized = "LaunchInfo(block=(32, 1, 1), shared_bytes=int(payload.mode) * 1024)"
    kernel = (toys.folder / "toys" / "copy_cute.py").read_text().replace('if mode != "plain"', "if not mode")
    make_package("shared_sizes", families=text.replace("LaunchInfo(block=(32, 1, 1))", sized), copy_cute=kernel)
    payload = importlib.import_module("shared_sizes.families").CopyPayload
    store = Store.open(tmp_path / "store", writable=True)
    plan = toys.plan(*(payload(mode=str(size)) for size in SIZES_KIB))
    (frozen,) = build_plans([plan], store, jobs=1, toolchains=toolchains).plans
    for limit in (47, 48, 98, 99, 100, 226, 227):
        facts = replace(ARCHS["sm_90a"], max_shared_bytes=limit * KIB, sm_shared_bytes=(limit + 1) * KIB)
        monkeypatch.setitem(targets.ARCHS, "sm_90a", facts)
        beyond = [size for size in SIZES_KIB if size > limit]
        resolution = resolve_plan(frozen, store)
        assert len(resolution.damaged) == len(beyond)
        for said, size in zip(resolution.damaged, beyond, strict=True):
            found = f"a block needs {size * KIB} of {limit * KIB} bytes of shared memory"
            assert said.startswith(f"shared_sizes_copy(mode={size}): ") and found in said
        assert len(resolution.programs) == len(SIZES_KIB) - len(beyond)
        if beyond:
            with pytest.raises(DamagedPrograms) as raised:
                resolution.check()
            assert all(said in str(raised.value) for said in resolution.damaged), "every one is listed"


def test_a_program_above_the_limit_is_refused_by_the_build(
    toys: Any, toolchains: Any, make_package: Any, tmp_path: Any
) -> None:
    text = (toys.folder / "toys" / "families.py").read_text().replace("toys", "too_large")
    sized = "LaunchInfo(block=(32, 1, 1), shared_bytes=228 * 1024)"
    make_package("too_large", families=text.replace("LaunchInfo(block=(32, 1, 1))", sized))
    families = importlib.import_module("too_large.families")
    store = Store.open(tmp_path / "store", writable=True)
    report = build_plans([toys.plan(families.CopyPayload())], store, jobs=1, toolchains=toolchains)
    assert "a block needs 233472 of 232448 bytes of shared memory" in report.outcomes[0].reason
    assert report.plans == () and list(store.entries("record")) == []
