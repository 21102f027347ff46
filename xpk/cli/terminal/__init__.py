"""Terminal output: formats, tables, live lines and help pages."""
