"""Tools of the MCP server, with which agents read clusters and workloads, plan changes and carry out plans."""
