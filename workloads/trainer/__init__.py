"""A small multislice language model trainer in JAX: `python -m trainer --help`."""
