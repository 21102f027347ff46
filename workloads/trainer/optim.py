"""AdamW with warm-up, cosine decay and gradient clipping."""

from typing import Any

import jax
import optax  # type: ignore[import-untyped]

from trainer import model
from trainer.config import Optim


def schedule(config: Optim, steps: int) -> optax.Schedule:
    """Return the learning rate as a function of the finished steps."""
    warmup = min(config.warmup, max(steps - 1, 0))
    return optax.warmup_cosine_decay_schedule(
        init_value=0.0 if warmup else config.lr,
        peak_value=config.lr,
        warmup_steps=warmup,
        decay_steps=max(steps, 1),
        end_value=config.lr * config.final_fraction,
    )


def optimizer(config: Optim, steps: int) -> optax.GradientTransformation:
    """Return the whole chain; norm gains are not decayed."""

    def decayed(params: Any) -> Any:
        return jax.tree_util.tree_map_with_path(lambda path, _: not model.is_gain(path), params)

    return optax.chain(
        optax.clip_by_global_norm(config.clip),
        optax.adamw(
            schedule(config, steps),
            b1=config.b1,
            b2=config.b2,
            weight_decay=config.weight_decay,
            mask=decayed,
        ),
    )
