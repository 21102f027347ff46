"""examples/jax_train.py with a pause in each step, and the files that the bundled trainer writes about its progress.

It is shipped beside jax_train.py. PLANNED_EXIT=RANK:STEP:CODE ends a host of the first attempt with an exit code.
"""

# mypy: disable-error-code="import-not-found, no-untyped-call"

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax_train

INTERVAL, PAUSE_SECONDS = 5, 0.1
SLICE, HOST = int(os.environ["MEGASCALE_SLICE_ID"]), int(os.environ["TPU_WORKER_ID"])
RANK, ATTEMPT = SLICE * int(os.environ["XPK_HOSTS_PER_SLICE"]) + HOST, int(os.environ["XPK_RESTART_ATTEMPT"])
OUTPUT = Path(os.environ["XPK_OUTPUT_DIR"])
step_now = 0


def append(file: Path, line: dict[str, Any]) -> None:
    """Append a line of JSON with the time."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as lines:
        lines.write(json.dumps({"time": time.time(), "attempt": ATTEMPT, **line}) + "\n")


def event(name: str) -> None:
    """Record an event of this host."""
    facts = {"event": name, "slice": SLICE, "host": HOST, "pid": os.getpid()}
    append(OUTPUT / "events" / f"s{SLICE}-h{HOST}.jsonl", facts)


def paced(batch: Callable[[int], Any]) -> Callable[[int], Any]:
    """Return a function that reads a batch after a pause, and ends the host where that is planned."""
    rank, at, code = map(int, os.environ.get("PLANNED_EXIT", "-1:0:0").split(":"))

    def read(step: int) -> Any:
        global step_now
        step_now = step
        time.sleep(PAUSE_SECONDS)
        if (RANK, ATTEMPT, step) == (rank, 0, at):
            event("exit")
            os._exit(code)
        return batch(step)

    return read


def recorded(compile_: Callable[..., Any]) -> Callable[..., Any]:
    """Return a compiler whose program records the loss of each step."""

    def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        program = compile_(function, **options)

        def step(*arguments: Any) -> Any:
            weights, loss, ending = program(*arguments)
            value = float(loss)
            if RANK == 0:
                append(OUTPUT / "metrics.jsonl", {"step": step_now, "loss": value, "loss_hex": value.hex()})
            return weights, loss, ending

        return step

    return compiled


def noted(on_sigterm: Callable[..., None]) -> Callable[..., None]:
    """Return a handler of SIGTERM that also records it, as local hosts must if another process sends it."""

    def handle(*arguments: object) -> None:
        if "XPK_TERMINATION_LOG" in os.environ:
            Path(os.environ["XPK_TERMINATION_LOG"]).write_text("asked to end\n")
        on_sigterm(*arguments)

    return handle


def main() -> None:
    """Train as the example does."""
    event("start")
    jax_train.on_sigterm = noted(jax_train.on_sigterm)
    jax_train.SAVE_EVERY = INTERVAL
    jax_train.batch, jax.jit = paced(jax_train.batch), recorded(jax.jit)
    jax_train.main()


if __name__ == "__main__":
    main()
