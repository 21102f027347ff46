"""`xpk cluster`."""
