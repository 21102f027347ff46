"""The page of all measurements, docs/performance.md, from the files in bench/results."""
