"""A release: packages with the same bytes from each build, their SBOMs and checksums (docs/releasing.md)."""
