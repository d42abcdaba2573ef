"""What the code takes, measured on the machine at hand. Each command prints the machine's own rate beside its figures.

    python -m benchmarks.decode     text after a long context, and a step of a drawing
"""
