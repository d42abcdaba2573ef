"""Where samples come from: trajectory schema, sources on disk, length index, loader."""
