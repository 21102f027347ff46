"""The output folders of workloads: where they may be, what is in them, and their lines of JSON."""
