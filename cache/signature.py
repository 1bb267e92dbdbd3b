"""Signatures of packs: Ed25519 over what proves every byte. The extra ``sign`` brings ``cryptography``."""

import re
from collections.abc import Sequence
from pathlib import Path

from planfreeze import errors

__all__ = ["SIGNATURE_BYTES", "check_signature", "key_name", "read_trusted_keys", "sign"]

PUBLIC_BYTES = 32
SIGNATURE_BYTES = PUBLIC_BYTES + 64  # the signer's public key, then what Ed25519 gives

# A signature made for a pack proves nothing else that the same key signs.
CONTEXT = b"planfreeze pack signature 1\0"
MAX_KEY_FILE_BYTES = 1 << 20
PEM_PATTERN = re.compile(rb"-----BEGIN [A-Z ]+-----.*?-----END [A-Z ]+-----", re.DOTALL)


def sign(message: bytes, key: Path) -> bytes:
    """Sign a message with the private key in a PEM file; the same key and message give the same bytes.

    Raises
    ------
    UnreadableKey
        The file cannot be read or holds no unencrypted Ed25519 private key.
    ExtraMissing
        ``cryptography`` is not installed.
    """
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ImportError:
        raise errors.ExtraMissing("sign", "cryptography") from None
    expected = "an unencrypted Ed25519 private key in PEM form"
    try:
        private = load_pem_private_key(read_key_file(key, expected), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise errors.UnreadableKey(str(key), expected, str(error)) from error
    if not isinstance(private, Ed25519PrivateKey):
        raise errors.UnreadableKey(str(key), expected, "it is a key of another kind")
    return private.public_key().public_bytes_raw() + private.sign(CONTEXT + message)


def read_trusted_keys(paths: Sequence[Path]) -> tuple[bytes, ...]:
    """Return the Ed25519 public keys in PEM files, each of which holds one or more.

    Raises
    ------
    UnreadableKey
        A file cannot be read, holds no key, or anything else than Ed25519 public keys.
    ExtraMissing
        There are paths, and ``cryptography`` is not installed.
    """
    return tuple(key for path in paths for key in read_public_keys(path))


def read_public_keys(path: Path) -> list[bytes]:
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
    except ImportError:
        raise errors.ExtraMissing("sign", "cryptography") from None
    expected = "a file of Ed25519 public keys in PEM form"
    blocks = PEM_PATTERN.findall(read_key_file(path, expected))
    try:
        keys = [load_pem_public_key(block) for block in blocks]
    except (ValueError, UnsupportedAlgorithm) as error:
        raise errors.UnreadableKey(str(path), expected, str(error)) from error
    found = [key.public_bytes_raw() for key in keys if isinstance(key, Ed25519PublicKey)]
    if not found or len(found) != len(keys):
        reason = "it holds a key of another kind" if keys else "it holds no key"
        raise errors.UnreadableKey(str(path), expected, reason)
    return found


def read_key_file(path: Path, expected: str) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_KEY_FILE_BYTES)
    except OSError as error:
        raise errors.UnreadableKey(str(path), expected, error.strerror or str(error)) from error


def check_signature(message: bytes, signature: bytes, trusted: Sequence[bytes]) -> str | None:
    """Return why no trusted key signed the message, or None when one did.

    Parameters
    ----------
    signature : bytes
        What :func:`sign` gave; empty when there is none.
    trusted : sequence of bytes
        Raw public keys, as :func:`read_trusted_keys` gives them; at least one.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    if not signature:
        return "it is not signed"
    public = signature[:PUBLIC_BYTES]
    if public not in trusted:
        return f"it is signed by key {key_name(public)}, which is none of the {len(trusted)} trusted ones"
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature[PUBLIC_BYTES:], CONTEXT + message)
    except InvalidSignature:
        return f"its signature by key {key_name(public)} is wrong"
    return None


def key_name(public: bytes) -> str:
    """Return a public key as people compare it: its 32 bytes in hexadecimal digits."""
    return public.hex()
