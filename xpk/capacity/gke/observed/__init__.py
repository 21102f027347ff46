"""The observed project and cluster."""
