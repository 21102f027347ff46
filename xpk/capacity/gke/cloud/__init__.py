"""Google Cloud: its APIs, configuration and errors."""
