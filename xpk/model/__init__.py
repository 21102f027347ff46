"""Types that all packages share: specs, accelerators, names, errors. No I/O."""
