"""kind clusters: capacity in Docker."""
