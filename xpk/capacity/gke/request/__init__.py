"""The request for a cluster: options, their problems, and their lines in a plan."""
