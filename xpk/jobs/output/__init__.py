"""Output folders of workloads: permitted locations, content, and JSON lines."""
