"""Images: builds, the cache on nodes, and how pulls went."""
