"""Commands of `xpk cluster`."""
