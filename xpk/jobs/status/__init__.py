"""Status of workloads, read from objects: phase, place in the queue, restarts, and why hosts do not run."""
