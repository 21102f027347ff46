"""The hosts of an attempt: bootstrap, peers, watchdog, signals, and the lease on the output folder."""
