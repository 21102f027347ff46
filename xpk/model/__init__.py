"""What everything else speaks about: specs, accelerators, names, errors. No I/O."""
