"""The run that the drills on kind disturb: equal settings, so that one undisturbed run is the reference of all."""

from __future__ import annotations

from collections.abc import Sequence

from e2e.harness import Workload
from e2e.kind_cluster import SLICES, Place

STEPS, INTERVAL = 120, 10  # enough for all faults of a run on a machine that trains fast beside slow commands
HOSTS = 2 * SLICES
SECONDS = 600.0  # for any wait for steps: a busy machine takes ten times as long as an idle one
TRAINER = [
    "--config", "tiny", "--set", f"run.steps={STEPS}", "--set", f"checkpoint.every={INTERVAL}",
    "--set", f"run.eval_every={STEPS // 2}", "--set", "run.log_every=4", "--set", "data.path=stdlib",
    "--set", "data.max_bytes=400000", "--set", "data.global_batch=16", "--set", "model.seq_len=64",
    "--set", "model.layers=1",
]  # fmt: skip


def start(
    place: Place, name: str, *, max_restarts: int, options: Sequence[str] = (), settings: Sequence[str] = ()
) -> Workload:
    """Start the run under a name, without remains of an earlier one; `settings` must not change its results."""
    run = Workload(place.lab, name)
    options = ("--fresh", *options)
    if place.kubectl("get", "jobset", name, "--ignore-not-found"):
        place.xpk("workload", "delete", name, "--cluster", place.cluster, "--yes", "--with-output")
    trainer = [*TRAINER, *(word for setting in settings for word in ("--set", setting))]
    place.lab.create_workload(name, num_slices=SLICES, max_restarts=max_restarts, trainer=trainer, options=options)
    return run


def await_phase(run: Workload) -> None:
    """Wait until an attempt has its own checkpoint and is some steps past it, but not near the next."""

    def ready() -> bool:
        if not run.steps:
            return False
        attempt = run.steps[-1]["attempt"]
        first = next(line["step"] for line in run.steps if line["attempt"] == attempt)
        saved = run.saved(attempt)
        return bool(saved >= first and 2 <= run.steps[-1]["step"] - saved <= INTERVAL - 4)

    run.await_(ready, SECONDS)
