"""Report of a run: from its output (record) to its goodput to one HTML page."""
