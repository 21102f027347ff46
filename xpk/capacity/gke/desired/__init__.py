"""The desired cluster as request bodies, and the limits that it must respect. Pure."""
