"""Code shared by the tool, the trainer and the supervisor of a command. Does not need JAX, click or Kubernetes."""
