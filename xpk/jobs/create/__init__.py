"""Creation of workloads: options, checks, mounts and the objects on the cluster."""
