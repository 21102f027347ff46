"""Steps of a plan that change the cluster."""
