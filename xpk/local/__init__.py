"""An embedded control plane: objects of Kubernetes, JobSet and Kueue, run as local processes."""
