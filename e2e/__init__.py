"""The whole path, with real processes: the demo, and drills in which things are killed."""
