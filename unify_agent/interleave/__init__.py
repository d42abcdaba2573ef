"""What a sequence is: segments, grammar, layouts, visibility, packing. Knows no model and no files."""
