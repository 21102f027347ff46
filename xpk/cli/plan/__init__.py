"""Commands of `xpk plan`."""
