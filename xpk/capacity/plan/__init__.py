"""Plans: steps as data, shown before they are carried out, and their execution."""
