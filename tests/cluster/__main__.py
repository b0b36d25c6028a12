"""`python -m tests.cluster`: starts a cluster to play with, until Ctrl-C; `--check` tries it.

Prints where everything is, and the token. Nothing of it is left when this ends, unless this is
killed with SIGKILL.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from typing import Any

from tqdm import tqdm

from tests.cluster.cluster import Cluster, Shape, started


def main(arguments: list[str] | None = None) -> int:
    """Start what is asked for; return the exit code."""
    asked = _parsed(arguments)
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell's background jobs ignore the first
        signal.signal(number, _interrupt)
    if asked.check:
        from tests.cluster.checks import check

        return check(asked.workers)
    if asked.streams:
        from tests.cluster.streams import check_killed

        print(check_killed(asked.streams))
        return 0
    shape = Shape(
        databases=asked.databases,
        standby=asked.standby,
        synchronous=asked.synchronous,
        servers=asked.servers,
        workers=asked.workers,
    )
    try:
        with tqdm(total=shape.parts, desc="starting", leave=False) as bar:

            def tell(name: str) -> None:
                bar.set_postfix_str(name)
                bar.update()

            with started(shape, tell) as cluster:
                bar.close()
                print(shown(cluster), flush=True)
                try:
                    while True:
                        time.sleep(3600)
                finally:
                    print("ending …", flush=True)
                    signal.signal(signal.SIGINT, signal.SIG_IGN)
                    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    except KeyboardInterrupt:
        return 0


def shown(cluster: Cluster) -> str:
    """Return what to do with a cluster, as text for a person."""
    lines = [f"token:      {cluster.token}"]
    lines += [f"page:       {server.page}" for server in cluster.servers]
    lines += [f"worker:     process {worker.process.pid}" for worker in cluster.workers]
    lines += [f"memory:     {cluster.address}"]
    lines += [f"{server.name}: {server.address()}" for server in cluster.databases]
    if cluster.standby:
        mode = "synchronous" if cluster.shape.synchronous else "asynchronous"
        lines.append(f"{cluster.standby.name}:  {cluster.standby.address()} ({mode})")
    first = cluster.servers[0].address if cluster.servers else "ADDRESS"
    lines += [
        "",
        f"curl -N {first}/chat/stream/v2 -H 'Authorization: Bearer {cluster.token}' \\",
        """  -H 'Content-Type: application/json' -d '{"session_id": "s", "message": "Hello"}'""",
        f"python -m hybridagi_steps stats --db '{cluster.address}'",
    ]
    if cluster.standby:
        lines += [
            "",
            "Kill the primary and let the standby take over; the servers go on:",
            f"  kill -9 {cluster.primary.process_id}; {cluster.primary.binaries / 'psql'} "
            f"'{cluster.standby.address()}' -c 'SELECT pg_promote()'",
        ]
    return "\n".join([*lines, "", "Ctrl-C ends all of it."])


def _parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    add: Any = parser.add_argument
    add("--databases", type=int, default=2, help="PostgreSQL servers beside the standby")
    add("--standby", action=argparse.BooleanOptionalAction, default=True, help="of the first")
    add("--servers", type=int, default=2, help="`hybridagi-steps serve` processes")
    add("--workers", type=int, default=2, help="`hybridagi-steps worker` processes")
    add("--synchronous", action="store_true", help="commits wait for the standby's disk")
    add("--check", action="store_true", help="drive and attack a cluster, print what happened")
    add("--streams", type=int, default=0, help="kill a server under that many streams")
    return parser.parse_args(arguments)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
