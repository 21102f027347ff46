"""JobSet and Kueue on a cluster: release manifests, settings, and resources by the number of hosts."""
