"""Learning rate: a linear warmup, then a cosine, a polynomial, a constant, or drops at given steps."""

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
        "piecewise": optax.piecewise_constant_schedule(
            config.lr, {step - warmup: config.decay_factor for step in config.decay_boundaries}
        ),
    }[config.schedule]
    if not warmup:
        return after
    rising = optax.linear_schedule(config.warmup_factor * config.lr, config.lr, warmup)
    return optax.join_schedules([rising, after], [warmup])
