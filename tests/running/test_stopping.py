"""What a run that is stopped waits for: its program's threads, but for those inside a tool."""

from __future__ import annotations

import asyncio

from hybridagi_steps.running.stopping import Threads


def is_waited_for(threads: Threads) -> bool:
    """Whether a run would have to wait for its threads now."""

    async def waits() -> bool:
        waiting = asyncio.ensure_future(threads.ended(3_600))
        await asyncio.sleep(0)
        waiting.cancel()
        return not waiting.done()

    return asyncio.run(waits())


def test_threads_are_waited_for_while_they_run_and_are_in_no_tool() -> None:
    threads = Threads("run")
    seen: list[bool] = []

    def program() -> None:
        seen.append(is_waited_for(threads))
        with threads.in_tool():
            seen.append(is_waited_for(threads))
        seen.append(is_waited_for(threads))

    assert not is_waited_for(threads)
    threads.counted(program)()
    assert not is_waited_for(threads)
    assert seen == [True, False, True]
