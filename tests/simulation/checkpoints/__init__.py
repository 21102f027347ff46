"""Simulation of the trainer's checkpoints: hosts of several attempts save, crash, overlap and resume, from a seed.

The protocols are those of trainer.checkpoint: `Checkpoints` over a folder, and `LocalTier`. Replaced are the arrays
(Orbax), the connections between the hosts, and the order in which everything happens (schedule.py).
"""

import tests.trainer.conftest  # noqa: F401  # emulates chips, before the trainer imports JAX
