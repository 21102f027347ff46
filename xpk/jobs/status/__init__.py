"""Status of workloads, read from objects: phase, queue position, restarts, and reasons for hosts not running."""
