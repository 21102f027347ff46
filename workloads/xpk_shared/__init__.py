"""Code that the tool, the trainer and the supervisor of a command share. Needs no JAX, click or Kubernetes client."""
