"""What a run will need, told beforehand on any machine: `python train.py +recipe=NAME plan=true` (docs/planning.md)."""
