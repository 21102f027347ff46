"""Workloads on a cluster that is there: create, list, status, logs, wait, delete. Jobs never provision."""
