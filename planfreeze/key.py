"""Keys: labelled hashes of everything that can change the bytes of a program."""

import hashlib
from collections.abc import Callable

import msgspec
from msgspec import Struct

from planfreeze import errors
from planfreeze.constants import constant_modules
from planfreeze.dtypes import TRITON_TYPES
from planfreeze.family import CuteSource, Definition, Family, RecordedSource, TritonSource
from planfreeze.payload import Payload, check_field
from planfreeze.record import RECORD_FORMAT
from planfreeze.sources import Sources, hash_source
from planfreeze.target import Target
from planfreeze.toolchain import Toolchain, host_compiler

__all__ = ["KEY_SCHEMA", "Key", "dialect_of", "differing_labels", "make_key", "source_roots", "spell_labels"]

KEY_SCHEMA = 2

# Environment of every compile, and nothing else that a compiler reads. Line information would put absolute paths
# into cubins; the fusion default differs between Triton versions.
COMPILE_ENVIRONMENT: dict[str, dict[str, str]] = {
    "triton": {"TRITON_DISABLE_LINE_INFO": "1", "TRITON_DEFAULT_FP_FUSION": "1"},
    "cute": {},
}
# What planfreeze itself does to a program's bytes and launch facts.
DRIVERS = {
    "triton": ("planfreeze.compilers.triton", "planfreeze.compilers.triton_target"),
    "cute": ("planfreeze.compilers.cute", "planfreeze.compilers.dumps", "planfreeze.compilers.launches"),
}
RECORDED_DRIVERS = {
    "triton": ("planfreeze.compilers.recorded_triton", "planfreeze.compilers.triton_target"),
    "cute": ("planfreeze.compilers.recorded_cute",),
}
COMPILE_OPTIONS = {"triton": "", "cute": "--keep-cubin"}


class Key(Struct, frozen=True):
    """A program's inputs: labels with bytes, and one digest over them."""

    parts: tuple[tuple[str, bytes], ...]
    digest: str


def make_key(
    family: Family,
    payload: Payload,
    definition: Definition,
    target: Target,
    sources: Sources,
    toolchain: Toolchain,
    *,
    hash_module: Callable[[str], str] | None = None,
) -> Key:
    """Make the key of a program from all its inputs; no path, time, host or address is one of them.

    Parameters
    ----------
    hash_module : callable, optional
        Takes the place of :func:`planfreeze.sources.hash_source` where many keys are made at one moment.
    """
    dialect = dialect_of(definition)
    parts: tuple[tuple[str, bytes], ...] = (
        ("schema", f"{KEY_SCHEMA} {RECORD_FORMAT}".encode()),
        ("family", f"{family.reference} {family.version}".encode()),
        ("payload", payload.encode()),
        ("arch", target.arch.encode()),
        ("definition", encode_definition(definition)),
        ("sources", sources.digest.encode()),
        ("toolchain", f"{toolchain.dialect} {toolchain.version} {toolchain.fingerprint}".encode()),
        ("driver", " ".join(map(hash_module or hash_source, compiler_modules(definition))).encode()),
        ("options", COMPILE_OPTIONS[dialect].encode()),
        ("environment", msgspec.msgpack.encode(sorted(COMPILE_ENVIRONMENT[dialect].items()))),
    )
    if isinstance(definition.source, RecordedSource) and dialect == "triton":
        # A compiler's own runtime has C modules built for its programs.
        parts += (("host compiler", host_compiler().encode()),)
    return Key(parts, hash_parts(parts))


def hash_parts(parts: tuple[tuple[str, bytes], ...]) -> str:
    """Hash labels and bytes, each with its length in front, so that no two lists run together alike."""
    hasher = hashlib.sha256()
    for label, value in parts:
        for piece in (label.encode(), value):
            hasher.update(len(piece).to_bytes(8, "little"))
            hasher.update(piece)
    return hasher.hexdigest()


def encode_definition(definition: Definition) -> bytes:
    """Encode the parameters and the source description that a compile worker gets."""
    source = definition.source
    check_fields(source)
    arguments = [[a.name, a.dtype, a.is_pointer, a.alignment] for a in definition.arguments]
    if isinstance(source, TritonSource):
        described: list[object] = [
            "triton",
            source.kernel,
            source.constants,
            source.num_warps,
            source.num_stages,
            source.divisible,
            source.options,
            [TRITON_TYPES[a.dtype] for a in definition.arguments],
        ]
    elif isinstance(source, CuteSource):
        launch = None if source.launch is None else source.launch.to_fields()
        described = ["cute", source.kernel, source.constants, launch]
    else:
        described = ["recorded", source.dialect, source.kernel, source.modules, source.facts]
    return msgspec.msgpack.encode([arguments, described])


def check_fields(source: TritonSource | CuteSource | RecordedSource) -> None:
    """Refuse constants and options whose type says nothing about their content, or stands for another's.

    Raises
    ------
    UnnameableConstant
        One is an object, an enumeration's member, a float; names it with its type.
    """
    stated: list[tuple[str, object]] = []
    if isinstance(source, TritonSource):
        stated += [("num_warps", source.num_warps), ("num_stages", source.num_stages), *source.options]
    if isinstance(source, (TritonSource, CuteSource)):
        stated += source.constants
    for name, value in stated:
        try:
            check_field(source.kernel, name, value)
        except errors.InvalidPayload as error:
            raise errors.UnnameableConstant(f"{name} of {source.kernel}", repr(value), error.reason) from error


def dialect_of(definition: Definition) -> str:
    """Return the dialect of a definition's source: "triton" or "cute"."""
    if isinstance(definition.source, RecordedSource):
        return definition.source.dialect
    return "cute" if isinstance(definition.source, CuteSource) else "triton"


def compiler_modules(definition: Definition) -> tuple[str, ...]:
    """Return the modules that do something to a program's bytes and launch facts."""
    dialect = dialect_of(definition)
    return RECORDED_DRIVERS[dialect] if isinstance(definition.source, RecordedSource) else DRIVERS[dialect]


def source_roots(family: Family, definition: Definition) -> tuple[str, ...]:
    """Return the modules that a program comes from: those of its family, its kernel and objects among its constants."""
    kernel = definition.source.kernel.partition(":")[0]
    if isinstance(definition.source, RecordedSource):  # what its family says of it is in its payload
        return tuple(dict.fromkeys((kernel, *definition.source.modules)))
    named = (module for _, value in definition.source.constants for module in constant_modules(value))
    return tuple(dict.fromkeys((family.reference.partition(":")[0], kernel, *named, *family.sources)))


def spell_labels(key: Key) -> dict[str, str]:
    """Return the labels of a key for people: short text as it is, anything else as a sha256."""
    return {label: spell_part(value) for label, value in key.parts}


def spell_part(value: bytes) -> str:
    """Return printable text as it is, anything else as a sha256."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = ""
    return text if text.isprintable() and text else hashlib.sha256(value).hexdigest()


def differing_labels(a: Key, b: Key) -> tuple[str, ...]:
    """Return the labels whose bytes differ between two keys."""
    others = dict(b.parts)
    return tuple(label for label, value in a.parts if others.get(label) != value)
