"""Time limits of a slice's waits for the others: longer than each of them waits for its own work.

So a slice that hangs is the first one to time out. It ends alone; the others miss it, do its share and continue. They
end only if all of them wait for each other, such as in a network that loses what they send. Time in which too few
slices are present to continue does not count.
"""

from trainer.elastic.slices import RESOLVE_SECONDS
from trainer.hosts import timeouts
from trainer.hosts.job import Job
from trainer.hosts.measurements import SAVE
from trainer.hosts.membership import EVALUATE, FINISH, Seq
from trainer.setup import Run


def of_others(run: Run, seq: Seq, *, may_save: bool) -> float:
    """Return the seconds to wait for the other slices in a reduction; `may_save`: one of them may save before it."""
    limits, config = timeouts.limits(run.job), run.job.config
    seconds = limits.others()
    if may_save or seq.phase == FINISH:
        seconds += limits.storage(SAVE)
    if seq.phase == EVALUATE or (seq.phase == FINISH and run.programs.detect):  # the leading slice records the mAP
        seconds += config.observe.data_hang_seconds
    return seconds


def of_joiner(job: Job, *, evaluates: bool) -> float:
    """Return the seconds in which a slice that joins is sent the state: at a step, after a save and an evaluation."""
    limits = timeouts.limits(job)
    seconds = RESOLVE_SECONDS + limits.others() + limits.storage(SAVE)
    return seconds + (job.config.observe.data_hang_seconds if evaluates else 0.0)
