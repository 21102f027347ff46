"""Settings of the learning rate that do not fit each other."""

from collections.abc import Iterator

from trainer.config import Optim
from trainer.errors import Problem


def problems(optim: Optim) -> Iterator[Problem]:
    """Yield the problems of `optim.decay_steps` and of the schedule that uses them."""
    if optim.schedule != "piecewise":
        if optim.decay_steps:
            message = (
                f"optim.decay_steps = {optim.decay_steps!r} requires optim.schedule=piecewise, not {optim.schedule}"
            )
            yield Problem(message, "Omit optim.decay_steps, or use --set optim.schedule=piecewise")
        return
    steps = optim.decay_boundaries
    if not steps or list(steps) != sorted(set(steps)) or steps[0] <= optim.warmup:
        message = f"optim.decay_steps = {optim.decay_steps!r} is not a list of rising steps after optim.warmup"
        yield Problem(message, f"Use steps above {optim.warmup}, such as {optim.warmup + 100},{optim.warmup + 200}")
