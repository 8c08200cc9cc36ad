"""The key of keyed hashes: a file beside the ledger that only its owner can read, or ``SAGASPAN_SECRET``.

Whoever reads a copy of the ledger cannot find out a card number by trying all of them: that takes this key, so it is
never in the database that it protects. All processes that use a ledger, on whatever host, must have the same one, or
what is agreed to on one host would not be what another one asks for; the ledger knows it by a hash of its own, and
refuses another.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import secrets
import stat
from pathlib import Path
from typing import Final

from sagaspan._home import home
from sagaspan._home import make as make_home
from sagaspan.exceptions import ConfigurationError, StoreUnavailable

VARIABLE: Final = "SAGASPAN_SECRET"
SHORTEST: Final = 32
_SQLITE: Final = "sqlite:///"

_log = logging.getLogger("sagaspan")


def from_environment() -> bytes | None:
    """The key that the environment names; raises ``ConfigurationError`` for one that can be guessed."""
    given = os.environ.get(VARIABLE)
    if given is None:
        return None
    if len(given) < SHORTEST:
        raise ConfigurationError(
            f"{VARIABLE} has {len(given)} characters; use {SHORTEST} random ones or more, such as those of: openssl "
            "rand -hex 32"
        )
    return given.encode()


def path_for(store_url: str) -> Path:
    """Where the key of a ledger is: beside a SQLite file, else in the home."""
    if store_url.startswith(_SQLITE):
        return Path(f"{store_url.removeprefix(_SQLITE)}.secret")
    return home() / "secret"


def make_for(store_url: str) -> bytes:
    """A new key for a ledger, in the home if it is not beside a file; see ``make``."""
    path = path_for(store_url)
    if store_url.startswith(_SQLITE):
        return make(path)
    make_home(path.parent)
    key = make(path)
    # Lost with the disk of a container, it would lock everybody out.
    _log.warning(
        "the secret of a ledger on a server was made: keep a copy of %s and give it to every host that uses the ledger "
        "(as that file, or as %s); those without it are refused", path, VARIABLE,
    )  # fmt: skip
    return key


def read(path: Path) -> bytes | None:
    """The key in ``path``, None if there is none; raises ``ConfigurationError`` if others can read it."""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            key = file.read().strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreUnavailable(f"the secret {path} cannot be read ({error.strerror}); give this user access") from error
    if mode & 0o077:
        raise ConfigurationError(f"others can read the secret {path}; chmod 600 {path}")
    if len(key) < SHORTEST:
        raise ConfigurationError(f"the secret {path} is damaged; restore it from a backup")
    return key


def make(path: Path) -> bytes:
    """A new key in ``path`` (0600), or the one that another process made there at the same moment."""
    key = secrets.token_hex(32).encode()
    unfinished = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(key + b"\n")
                file.flush()
                os.fsync(file.fileno())
            os.link(unfinished, path)  # whole, and never over one that is there
        except FileExistsError:
            pass
        finally:
            unfinished.unlink()
    except OSError as error:
        raise StoreUnavailable(
            f"the secret {path} cannot be made ({error.strerror}); make its folder writable, or set {VARIABLE}"
        ) from error
    return read(path) or key


def keyed_hash(key: bytes, text: bytes) -> str:
    """HMAC-SHA256 of ``text``, in 64 hex digits."""
    return hmac.new(key, text, hashlib.sha256).hexdigest()
