"""What the service allows. Values only."""

from __future__ import annotations

import os
from dataclasses import dataclass

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")

CONCURRENCY = min(4, os.cpu_count() or 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Limits and habits of the service."""

    allowed_hosts: tuple[str, ...] = LOOPBACK_NAMES
    """Names in a request's Host header that are this server; a page elsewhere cannot pose as it."""
    max_body_bytes: int = 1024 * 1024
    """Largest body of a request."""
    head_seconds: float = 10.0
    """How long a connection may take to send the whole head of a request."""
    body_seconds: float = 30.0
    """How long a request may take to send its body."""
    drain_seconds: float = 0.0
    """How long runs in flight may go on when the server is told to end; it takes in no new ones."""
    max_streams: int = 2000
    """Event streams that are read at the same time."""
    max_runs: int = 64
    """Runs that are in flight at the same time."""
    max_user_runs: int | None = None
    """Runs of one user that are in flight at the same time, on all servers of a PostgreSQL memory
    together; None: as many as of all."""
    requests_per_minute: int | None = None
    """Requests of one user that are answered in a minute, on all servers of a PostgreSQL memory
    together; as many may come at once. None: any number."""
    max_concurrency: int = CONCURRENCY
    """Searches and other questions to the memory that are answered at the same time. More than
    there are cores make each slower and none faster, unless a hosted embedder is waited for."""
    max_queue: int = 16
    """Questions that wait while as many as may are answered; what comes then is refused."""
    queue_seconds: float = 1.0
    """How long a question may wait; then it is refused."""
    heartbeat_seconds: float = 15.0
    """How often a silent stream shows that it lives."""
    stall_seconds: float = 20.0
    """How long a reader may take nothing before it is dropped; it can go on from its last id."""
    run_buffer_bytes: int = 4 * 1024 * 1024
    """Pieces of one run kept for readers that come back; those of complete messages go first."""
    kept_bytes: int = 32 * 1024 * 1024
    """Events kept of runs that are over; the oldest run goes first, its messages stay stored."""
