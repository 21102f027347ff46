"""An embedded control plane: the objects of Kubernetes, JobSet and Kueue, run as local processes."""
