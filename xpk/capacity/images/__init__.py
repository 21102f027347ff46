"""Images: builds, the cache on nodes, and the status of pulls."""
