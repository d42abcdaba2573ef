"""The embedded world's evaluation: prompts about unseen things, runs, measures, tables and the report."""
