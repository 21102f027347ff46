"""Records of a run for other programs: metrics.jsonl, events and TensorBoard files."""
