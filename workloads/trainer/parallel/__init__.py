"""Layout of a run over chips: mesh, partitioning, pipeline stages and int8 products."""
