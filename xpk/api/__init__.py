"""A small interface to an API server of JSON objects, with several implementations."""
