"""A pooler (PgBouncer) as a child process, in front of a PostgreSQL server of the tests.

It lends a connection of the server for one transaction at a time, and to fewer than ask: whoever
keeps something in a session of the server, or hands it a statement to keep, is found out.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from tests.cluster.postgres import PATIENCE_SECONDS, free_port, wait_for

_SEARCHED = "/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin"


def pooler_binary() -> str | None:
    """Return where PgBouncer is installed; None: nowhere."""
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path=_SEARCHED)


@contextmanager
def pooled(
    socket_folder: str,
    user: str | None,
    *,
    mode: str = "transaction",
    size: int = 2,
    more: str = "",
) -> Generator[str]:
    """Run a pooler; give its place, as `host:port`.

    Args:
        socket_folder: Where the server's socket lies.
        user: Whom the pooler runs as where the tests run as root.
        mode: How long a connection of the server is lent for.
        size: How many connections of the server there are for each database.
        more: Further settings.
    """
    folder, port = Path(tempfile.mkdtemp(prefix="pooler-")), free_port()
    folder.chmod(0o755)
    (folder / "pgbouncer.ini").write_text(
        f"""[databases]
* = host={socket_folder} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
default_pool_size = {size}
max_client_conn = 200
{more}
"""
    )
    command = [pooler_binary() or "", str(folder / "pgbouncer.ini")]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, user=user, cwd="/")
    try:
        wait_for(lambda: process.poll() is not None or _answers(port), "the pooler to answer")
        assert process.poll() is None, (folder / "log").read_text()
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)
        shutil.rmtree(folder)


def _answers(port: int) -> bool:
    try:
        psycopg.connect(f"postgresql://postgres@127.0.0.1:{port}/postgres").close()
    except psycopg.OperationalError as error:
        return "Connection refused" not in str(error)  # anything else it said itself
    return True
