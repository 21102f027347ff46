"""Simulation of the membership of elastic slices: slices train, freeze, die and join again, from a seed.

Real are the registry with its roster, its clients, the membership of a slice, its decisions without the registry, the
reductions, and the leading slice's decisions. Replaced are clock, threads, sockets and the model that is trained.
"""

import tests.trainer.conftest  # noqa: F401  # emulates chips, before the trainer imports JAX
