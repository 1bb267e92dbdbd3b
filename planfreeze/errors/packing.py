"""Errors of packs, signatures, and of looking after a store."""

from planfreeze.errors.base import PlanfreezeError

__all__ = [
    "DamagedEntries",
    "DamagedPack",
    "PackMissing",
    "PackTooNew",
    "PackUnwritable",
    "RecordsDiffer",
    "UnreadableKey",
    "UntrustedPack",
]


class PackMissing(PlanfreezeError):
    """There is no pack at a path."""

    exit_code = 3

    def __init__(self, pack: str) -> None:
        super().__init__(pack)
        self.pack = pack

    def __str__(self) -> str:
        return (
            f"there is no pack at {self.pack}. Reading never makes one. Run: planfreeze pack --plan NAME -o {self.pack}"
        )


class DamagedPack(PlanfreezeError):
    """A file is no pack, or not the one that was written."""

    exit_code = 4

    def __init__(self, pack: str, reason: str) -> None:
        super().__init__(pack, reason)
        self.pack, self.reason = pack, reason

    def __str__(self) -> str:
        return (
            f"{self.pack} is no whole pack: {self.reason}. Nothing of it is used. Copy it again, or run: "
            f"planfreeze pack --plan NAME -o {self.pack}"
        )


class PackTooNew(PlanfreezeError):
    """A pack was written by a later version of planfreeze."""

    exit_code = 4

    def __init__(self, pack: str, found: int, known: int) -> None:
        super().__init__(pack, found, known)
        self.pack, self.found, self.known = pack, found, known

    def __str__(self) -> str:
        return (
            f"{self.pack} was written by a later planfreeze: it has format {self.found}, this version reads "
            f"{self.known}. The same bytes may mean something else there. Run: pip install --upgrade planfreeze"
        )


class UntrustedPack(PlanfreezeError):
    """A pack does not carry a signature that one of the trusted keys made."""

    exit_code = 4

    def __init__(self, pack: str, reason: str) -> None:
        super().__init__(pack, reason)
        self.pack, self.reason = pack, reason

    def __str__(self) -> str:
        return (
            f"pack {self.pack} is not trusted: {self.reason}. PLANFREEZE_TRUSTED_KEYS says whose packs are taken. "
            f"Add the signer's public key there, or run: planfreeze pack --plan NAME -o {self.pack} --sign KEY"
        )


class UnreadableKey(PlanfreezeError):
    """A file holds no Ed25519 key of the kind that is needed."""

    exit_code = 2

    def __init__(self, path: str, expected: str, reason: str) -> None:
        super().__init__(path, expected, reason)
        self.path, self.expected, self.reason = path, expected, reason

    def __str__(self) -> str:
        return (
            f"{self.path} is not {self.expected}: {self.reason}. Without it nothing is signed or trusted. "
            f"See docs/reference/packs.md, or run: openssl genpkey -algorithm ed25519 -out KEY"
        )


class PackUnwritable(PlanfreezeError):
    """The machine does not let a pack be written."""

    exit_code = 6

    def __init__(self, pack: str, reason: str, needed_bytes: int) -> None:
        super().__init__(pack, reason, needed_bytes)
        self.pack, self.reason, self.needed_bytes = pack, reason, needed_bytes

    def __str__(self) -> str:
        return (
            f"{self.pack} cannot be written: {self.reason} ({self.needed_bytes} bytes needed). What was there before "
            f"is unchanged. Make room or name another file: planfreeze pack -o FILE"
        )


class RecordsDiffer(PlanfreezeError):
    """A pack and a store hold different records of the same inputs."""

    def __init__(self, pack: str, store: str, keys: tuple[str, ...]) -> None:
        super().__init__(pack, store, keys)
        self.pack, self.store, self.keys = pack, store, keys

    def __str__(self) -> str:
        listed = "".join(f"\n  {key}" for key in self.keys)
        return (
            f"{self.store} holds other records of {len(self.keys)} keys than {self.pack}: a build was not "
            f"reproducible. A published record is never changed, so no plan of the pack was added. Use the pack as "
            f"it is, or run: planfreeze unpack {self.pack} --store DIR{listed}"
        )


class DamagedEntries(PlanfreezeError):
    """A store or pack that was verified holds entries that are damaged or lack what they name."""

    exit_code = 4

    def __init__(self, store: str, checked: int, count: int, *, is_pack: bool = False) -> None:
        super().__init__(store, checked, count, is_pack)
        self.store, self.checked, self.count, self.is_pack = store, checked, count, is_pack

    def __str__(self) -> str:
        advice = f"Run: planfreeze verify --repair --store {self.store}"
        if self.is_pack:
            advice = f"A pack is never changed; write it anew: planfreeze pack --plan NAME --store DIR -o {self.store}"
        return (
            f"{self.count} of {self.checked} entries of {self.store} are damaged or lack what they name. Sessions "
            f"refuse the plans concerned. {advice}"
        )
