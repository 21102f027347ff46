"""Capacity on Google Kubernetes Engine: clusters, and a node pool for each slice."""
