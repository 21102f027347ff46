"""Checkpoints: the persistent tier, the local tier, the broadcast of a restore, and checks of the state."""
