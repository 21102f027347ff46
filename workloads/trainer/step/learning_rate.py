"""Learning rate: a linear warmup, then a cosine, a polynomial or a constant."""

# mypy: disallow-untyped-calls=False

import optax  # type: ignore[import-untyped]

from trainer.config import Optim


def schedule(config: Optim, steps: int) -> optax.Schedule:
    """Return the learning rate as a function of the finished steps."""
    warmup = min(config.warmup, max(steps - 1, 0))
    end = config.lr * config.final_fraction
    rest = max(steps, 1) - warmup
    after = {
        "cosine": optax.cosine_decay_schedule(config.lr, rest, config.final_fraction),
        "polynomial": optax.polynomial_schedule(config.lr, end, config.power, rest),
        "constant": optax.constant_schedule(config.lr),
    }[config.schedule]
    return optax.join_schedules([optax.linear_schedule(0.0, config.lr, warmup), after], [warmup]) if warmup else after
