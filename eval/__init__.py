"""World-knowledge benchmarks of the checkout: `python -m eval` says which."""
