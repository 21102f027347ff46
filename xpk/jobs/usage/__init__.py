"""Usage of a cluster's chips over time: the ledger, its readings, and sums by team, user, workload and cause."""
