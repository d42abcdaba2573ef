"""Making the data: from a list of names to verified trajectories (`python -m data build`)."""
