"""What a run leaves behind, accounted for: record → goodput → one page."""
