"""Plans: the changes from the observed to the desired state, and their cost."""
