"""One small interface to an API server of JSON objects, whoever serves it."""
