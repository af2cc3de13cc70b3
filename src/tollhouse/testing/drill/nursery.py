"""``python -m tollhouse.testing.drill.nursery``: a process that has imported everything and forks workers.

Starting an interpreter takes half a second, a fork a few milliseconds; the drill kills thousands of processes. It reads
one job a line on standard input and ends with it. It has no threads and no event loop, so that a fork copies nothing
half-done; children that end are reaped by the kernel.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import traceback
from contextlib import ExitStack

from tollhouse.testing.drill.worker import Job, work
from tollhouse.testing.mutants import mutant


def main() -> None:
    """Fork a worker for each job until standard input ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin.buffer:
        if os.fork() == 0:
            _be_worker(Job(**json.loads(line)))
    if os.getpgrp() == os.getpid():  # a worker that is stopped would outlive a conductor that was killed
        os.killpg(0, signal.SIGKILL)


def _be_worker(job: Job) -> None:
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(0)
        with ExitStack() as broken:
            if job.mutant is not None:
                broken.enter_context(mutant(job.mutant))
            asyncio.run(work(job))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        # Not through the interpreter's end: what the nursery holds is not this process's to clean up.
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
