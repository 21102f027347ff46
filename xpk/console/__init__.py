"""The live console: clusters, queues and runs as a page of a local server (`xpk serve`) and as text (`xpk top`)."""
