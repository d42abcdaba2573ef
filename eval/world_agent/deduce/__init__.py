"""The deduction track: predict how a world evolves under fixed dynamics, and act in it."""
