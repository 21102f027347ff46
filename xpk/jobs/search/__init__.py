"""Search of slices for a run: which finish in time, and at what cost."""
