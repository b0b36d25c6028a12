"""Roles: what each database role may do in which namespace; held by the database, not by this code.

The owner of the tables migrates them and sees all. Any other role sees what `grant` has bound it
to, through forced row-level security (0012_isolation.sql). A role is made by who runs the server,
with the password that nobody else has to know: `CREATE ROLE app LOGIN PASSWORD '…'`.
"""

from __future__ import annotations

from typing import Literal, get_args

from hybridagi_steps.errors import InvalidSettingError, UnsupportedAddressError
from hybridagi_steps.stores.address import is_server, shown_address
from hybridagi_steps.stores.placement import placed
from hybridagi_steps.stores.postgres.database import PostgresDatabase
from hybridagi_steps.stores.postgres.work_tables import isolate
from hybridagi_steps.stores.waiting import DEFAULT_TIMEOUT_SECONDS

Rights = Literal["reader", "writer", "server"]
"""`reader` searches and reads; `writer` also records, and removes nothing; `server` does both."""

_NONE = "none"
_KNOWN = "SELECT to_regrole(quote_ident(?)) IS NOT NULL"
_ADMIT = "SELECT admit(?, ?, ?)"
_EXPEL = "SELECT expel(?, ?)"


def grant(address: str, role: str, rights: Rights | None, *, namespace: str = "default") -> None:
    """Bind a role to a namespace, as one of the owner's; the namespace is made if it is not there.

    Rights are the role's own, in all its namespaces: the last ones given count. What a role may do
    changes with its next statement.

    Args:
        address: The database, as the owner of its tables reaches it, or `placement.toml#name`.
        role: A role that is there.
        rights: What it may do; None binds it to this namespace no longer.
        namespace: Which steps.
    """
    rights = as_rights(rights or _NONE)
    address, namespace = placed(address, namespace)
    if not is_server(address):
        raise UnsupportedAddressError(
            f"{address} is a file, which has no roles; chmod protects it."
        )
    database = PostgresDatabase(address, "full", DEFAULT_TIMEOUT_SECONDS)
    try:
        with database.writing() as connection:
            if connection.execute(_KNOWN, (role,)).fetchone() != (True,):
                raise InvalidSettingError(
                    f"{shown_address(address)} has no role {role!r:.80}; who runs the server makes "
                    "one: CREATE ROLE … LOGIN PASSWORD '…'."
                )
            if rights is None:
                connection.execute(_EXPEL, (role, namespace))
            else:
                connection.execute(_ADMIT, (role, namespace, rights))
        isolate(address)
    finally:
        database.close()


def as_rights(name: str) -> Rights | None:
    """Return rights by their name, None for `none`."""
    for known in get_args(Rights):
        if name == known:
            return known
    if name != _NONE:
        raise InvalidSettingError(
            f"rights are one of {', '.join(get_args(Rights))} and {_NONE}, not {name!r:.80}."
        )
    return None
