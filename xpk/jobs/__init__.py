"""Workloads on an existing cluster: create, list, status, logs, wait, delete. Jobs never provision capacity."""
