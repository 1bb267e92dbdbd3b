"""Signatures of packs: with trusted keys set, nothing but a pack that one of them signed is taken."""

import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

pytest.importorskip("cryptography")

from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from planfreeze.cache.digest import digest_of
from planfreeze.cache.pack import Pack
from planfreeze.cache.pack_index import PackEntry, PackIndex
from planfreeze.cache.pack_writing import write_pack
from planfreeze.cache.signature import SIGNATURE_BYTES, sign
from planfreeze.errors import DamagedEntry, DamagedPack, ExtraMissing, PackTooNew, UnreadableKey, UntrustedPack

DATA = b"a plan" * 30
INDEX = PackIndex(
    refs=(("name", digest_of(DATA)),),
    plans=(PackEntry(name=digest_of(DATA), digest=digest_of(DATA), size_bytes=len(DATA)),),
    records=(),
    blobs=(),
)


def private_pem(key: object, encryption: object = None) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption or NoEncryption())  # type: ignore[attr-defined]


def public_pem(key: object) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)  # type: ignore[attr-defined]


class Keys:
    """Two signers, each with a file of either key."""

    def __init__(self, folder: Path) -> None:
        self.mine, self.others = folder / "mine.pem", folder / "others.pem"
        self.mine_public, self.others_public = folder / "mine.pub", folder / "others.pub"
        for private, public in ((self.mine, self.mine_public), (self.others, self.others_public)):
            key = Ed25519PrivateKey.generate()
            private.write_bytes(private_pem(key))
            public.write_bytes(public_pem(key))


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path)


def write(path: Path, key: Path | None, index: PackIndex = INDEX) -> Path:
    if key is not None:
        index = replace(index, signature=sign(index.signed, key))
    write_pack(path, index, (DATA,))
    return path


def test_a_pack_signed_by_a_trusted_key_is_taken_whoever_owns_it(tmp_path: Path, keys: Keys) -> None:
    path = write(tmp_path / "a.pfz", keys.mine)
    path.chmod(0o666)
    pack = Pack.open(path, trusted_keys=(keys.mine_public,))
    pack.check_trust()
    assert pack.get_plan(digest_of(DATA)) == DATA


def test_the_same_key_and_index_give_the_same_bytes(tmp_path: Path, keys: Keys) -> None:
    first, second = write(tmp_path / "a.pfz", keys.mine), write(tmp_path / "b.pfz", keys.mine)
    assert first.read_bytes() == second.read_bytes() != write(tmp_path / "c.pfz", keys.others).read_bytes()


def test_an_unsigned_pack_is_refused_by_reason(tmp_path: Path, keys: Keys) -> None:
    path = write(tmp_path / "a.pfz", None)
    Pack.open(path)
    with pytest.raises(UntrustedPack, match="not signed") as raised:
        Pack.open(path, trusted_keys=(keys.mine_public,))
    assert raised.value.exit_code == 4 and str(path) in str(raised.value)


def test_vouching_for_the_owner_does_not_vouch_for_the_signature(tmp_path: Path, keys: Keys) -> None:
    with pytest.raises(UntrustedPack):
        Pack.open(write(tmp_path / "a.pfz", None), is_trusted=True, trusted_keys=(keys.mine_public,))


def test_a_pack_of_another_signer_is_refused_and_the_key_is_named(tmp_path: Path, keys: Keys) -> None:
    path = write(tmp_path / "a.pfz", keys.others)
    with pytest.raises(UntrustedPack) as raised:
        Pack.open(path, trusted_keys=(keys.mine_public,))
    der = subprocess.run(
        ["openssl", "pkey", "-pubin", "-in", keys.others_public, "-outform", "DER"], capture_output=True, check=True
    )
    assert der.stdout[-32:].hex() in str(raised.value)
    Pack.open(path, trusted_keys=(keys.mine_public, keys.others_public))


def test_one_file_may_hold_several_keys(tmp_path: Path, keys: Keys) -> None:
    both = tmp_path / "both.pub"
    both.write_bytes(keys.mine_public.read_bytes() + b"\n" + keys.others_public.read_bytes())
    for key in (keys.mine, keys.others):
        Pack.open(write(tmp_path / "a.pfz", key), trusted_keys=(both,))


def test_a_signature_of_one_pack_is_none_of_another(tmp_path: Path, keys: Keys) -> None:
    signature = sign(INDEX.signed, keys.mine)
    renamed = replace(INDEX, refs=(("other", digest_of(DATA)),), signature=signature)
    with pytest.raises(UntrustedPack, match="wrong"):
        Pack.open(write(tmp_path / "a.pfz", None, renamed), trusted_keys=(keys.mine_public,))


def test_a_trusted_public_key_before_a_foreign_signature_helps_nobody(tmp_path: Path, keys: Keys) -> None:
    mixed = sign(INDEX.signed, keys.mine)[:32] + sign(INDEX.signed, keys.others)[32:]
    with pytest.raises(UntrustedPack, match="wrong"):
        Pack.open(write(tmp_path / "a.pfz", None, replace(INDEX, signature=mixed)), trusted_keys=(keys.mine_public,))


def test_no_change_of_a_signed_pack_passes(tmp_path: Path, keys: Keys) -> None:
    path = write(tmp_path / "a.pfz", keys.mine)
    whole = path.read_bytes()
    assert len(whole) == len(INDEX.start) + SIGNATURE_BYTES + len(DATA)
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises((DamagedPack, DamagedEntry, PackTooNew, UntrustedPack)):
            Pack.open(path, trusted_keys=(keys.mine_public,)).get_plan(digest_of(DATA))


def test_what_is_signed_covers_every_part_of_the_index() -> None:
    changes = (
        {"refs": (("named", digest_of(DATA)),)},
        {"plans": (replace(INDEX.plans[0], size_bytes=1),)},
        {"plans": (), "blobs": INDEX.plans},
        {"records": INDEX.plans},
        {"refs": ()},
    )
    signed = {replace(INDEX, **change).signed for change in changes} | {INDEX.signed}
    assert len(signed) == len(changes) + 1


@pytest.mark.parametrize("content", ["another kind", "private", "nothing", "garbage", "folder", "absent", "mixed"])
def test_a_file_that_holds_no_public_key_is_refused_by_name(tmp_path: Path, keys: Keys, content: str) -> None:
    path = tmp_path / "key.pub"
    match content:
        case "another kind":
            path.write_bytes(public_pem(generate_private_key(SECP256R1())))
        case "private":
            path = keys.mine
        case "nothing":
            path.write_bytes(b"")
        case "garbage":
            path.write_bytes(b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n")
        case "folder":
            path.mkdir()
        case "mixed":
            path.write_bytes(keys.mine_public.read_bytes() + public_pem(generate_private_key(SECP256R1())))
    with pytest.raises(UnreadableKey, match=str(path)) as raised:
        Pack.open(write(tmp_path / "a.pfz", keys.mine), trusted_keys=(path,))
    assert raised.value.exit_code == 2


@pytest.mark.parametrize("content", ["another kind", "public", "nothing", "encrypted", "absent"])
def test_a_file_that_holds_no_private_key_is_refused_by_name(tmp_path: Path, keys: Keys, content: str) -> None:
    path = tmp_path / "key.pem"
    match content:
        case "another kind":
            path.write_bytes(private_pem(generate_private_key(SECP256R1())))
        case "public":
            path = keys.mine_public
        case "nothing":
            path.write_bytes(b"")
        case "encrypted":
            path.write_bytes(private_pem(Ed25519PrivateKey.generate(), BestAvailableEncryption(b"secret")))
    with pytest.raises(UnreadableKey, match=str(path)):
        sign(b"message", path)


def test_keys_that_openssl_made_sign_and_are_trusted(tmp_path: Path) -> None:
    private, public = tmp_path / "key.pem", tmp_path / "key.pub"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", private], check=True)
    subprocess.run(["openssl", "pkey", "-in", private, "-pubout", "-out", public], check=True)
    Pack.open(write(tmp_path / "a.pfz", private), trusted_keys=(public,)).check_trust()


def test_without_cryptography_nothing_is_signed_and_nothing_trusted(
    tmp_path: Path, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    signed, plain = write(tmp_path / "a.pfz", keys.mine), write(tmp_path / "b.pfz", None)
    for name in [name for name in sys.modules if name.partition(".")[0] == "cryptography"]:
        monkeypatch.setitem(sys.modules, name, None)
    for call in (
        lambda: sign(b"message", keys.mine),
        lambda: Pack.open(signed, trusted_keys=(keys.mine_public,)),
        lambda: Pack.open(plain, trusted_keys=(keys.mine_public,)),
    ):
        with pytest.raises(ExtraMissing, match=r"planfreeze\[sign\]"):
            call()
    assert Pack.open(signed).get_plan(digest_of(DATA)) == DATA, "without trusted keys none is needed"
