"""The compiled step: gradients, reduction between slices, optimizers, and the cache of compiled programs."""
