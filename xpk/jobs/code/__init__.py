"""User code: content-addressed archives and their upload."""
