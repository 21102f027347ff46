"""Small multislice trainer in JAX: `python -m trainer --help`."""
