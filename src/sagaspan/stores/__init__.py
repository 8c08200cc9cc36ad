"""Stores by URL: ``sqlite:///relative.db``, ``sqlite:////absolute.db``, ``postgresql://user@host/database``, ``mysql://...``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from sagaspan._checks import check_variables, masked
from sagaspan._home import home
from sagaspan.exceptions import ConfigurationError
from sagaspan.ledger.store import Store

Migrate = Literal["auto", "check"]
Durability = Literal["normal", "full"]


def connect(
    url: str | Path, *, migrate: Migrate = "auto", durability: Durability = "normal", create: bool = True
) -> Store:
    """The store of ``url``, opened at its first use; raises ``ConfigurationError`` for a URL it cannot read.

    ``migrate="check"`` refuses an older schema instead of migrating it; ``durability="full"`` syncs every commit;
    ``create=False`` (for reading) refuses a ledger that does not exist. A ledger on a server is never made nor migrated
    by the way, whatever these say: ``sagaspan migrate`` does.
    """
    if isinstance(url, Path):
        raise ConfigurationError(f"the store {str(url)!r} is a path; write its URL: 'sqlite:///{url}'")
    if not url.strip():
        raise ConfigurationError("the store '' is empty; write its URL, or leave it out for the default")
    scheme, separator, rest = url.partition("://")
    if not separator:
        example = "ledger.db" if ":" in url else url
        raise ConfigurationError(
            f"the store {masked(url)!r} is not a URL; write for example sqlite:///{masked(example)}"
        )
    if scheme in ("postgresql", "postgres"):
        from sagaspan.stores.postgres import PostgresStore

        return PostgresStore(url, durability=durability)
    if scheme in ("mysql", "mariadb"):
        from sagaspan.stores.mariadb import MariadbStore

        return MariadbStore(url, durability=durability)
    if scheme != "sqlite":
        raise ConfigurationError(
            f"the store {masked(url)!r} is of a kind this version does not know; it knows sqlite:///PATH, "
            "postgresql://HOST/DATABASE and mysql://HOST/DATABASE"
        )
    if not rest.startswith("/") or rest == "/":
        raise ConfigurationError(
            f"the store {url!r} has no path; sqlite:///ledger.db is relative, sqlite:////var/ledger.db absolute"
        )
    if rest == "/:memory:":
        raise ConfigurationError(
            "a ledger in memory would forget everything with its process; name a file, such as sqlite:///ledger.db"
        )
    from sagaspan.stores.sqlite import SqliteStore

    return SqliteStore(Path(rest[1:]).expanduser(), migrate=migrate, durability=durability, create=create)


def default_store() -> str:
    """``SAGASPAN_STORE``, else the URL of ``ledger.db`` in the home in force.

    Raises ``ConfigurationError`` where a name of the environment is misspelt: it would be another ledger than meant.
    """
    check_variables(os.environ)
    return os.environ.get("SAGASPAN_STORE") or f"sqlite:///{home() / 'ledger.db'}"
