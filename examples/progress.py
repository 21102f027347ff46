"""Report the progress of a program without a framework, and resume after a failure.

xpk workload create told --max-restarts 1 --script-dir examples --command 'python3 progress.py'
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import xpk_run

STEPS, SAVE_EVERY = int(os.environ.get("STEPS", "60")), 20


def main() -> None:
    """Count from the last saved step on. The first attempt fails halfway."""
    saved = Path(os.environ["XPK_OUTPUT_DIR"]) / "saved"
    first = int(saved.read_text(encoding="ascii")) if saved.exists() else 0
    if first:
        xpk_run.log(resumed_step=first)
    is_first_host = os.environ["MEGASCALE_SLICE_ID"] == os.environ["TPU_WORKER_ID"] == "0"
    for step in range(first + 1, STEPS + 1):
        time.sleep(0.05)
        xpk_run.log(step=step, steps=STEPS, loss=4 / step, examples=32)
        if step % SAVE_EVERY == 0 and is_first_host:
            saved.write_text(str(step), encoding="ascii")
        if step == STEPS // 2 and is_first_host and not first:
            sys.exit(1)


if __name__ == "__main__":
    main()
