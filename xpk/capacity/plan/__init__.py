"""Plans: steps as data, shown before they run, and their execution."""
