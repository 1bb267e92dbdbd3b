from typing import ClassVar

from planfreeze.family import CuteSource, Definition, LaunchInfo, TritonSource, family, pointer, scalar
from planfreeze.payload import Payload


class AddPayload(Payload):
    family_name: ClassVar[str] = "NAME_add"
    block: int
    warps: int = 1


@family(AddPayload, version=1)
def add(payload, target):
    return Definition(
        arguments=(
            pointer("source", "i32", lambda scalars: scalars["count"]),
            pointer("out", "i32", lambda scalars: scalars["count"]),
            scalar("count"),
        ),
        source=TritonSource(
            kernel="NAME.add_triton:add_kernel",
            constants=(("block", payload.block),),
            num_warps=payload.warps,
        ),
        grid=lambda scalars, resident_blocks: (-(-scalars["count"] // payload.block), 1, 1),
    )


class CopyPayload(Payload):
    family_name: ClassVar[str] = "NAME_copy"
    mode: str = "plain"


@family(CopyPayload, version=1)
def copy(payload, target):
    return Definition(
        arguments=(
            pointer("source", "i32", lambda scalars: 128),
            pointer("out", "i32", lambda scalars: 128),
            scalar("count"),
        ),
        source=CuteSource(
            kernel="NAME.copy_cute:Copy",
            constants=(("mode", payload.mode),),
            launch=LaunchInfo(block=(32, 1, 1)),
        ),
        grid=lambda scalars, resident_blocks: (1, 1, 1),
    )
