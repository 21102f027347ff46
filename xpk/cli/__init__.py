"""Command line: parse arguments, call one library function, print the result."""
