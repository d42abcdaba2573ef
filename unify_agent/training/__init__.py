"""Training: the run's configuration, the plan-driven trainer, sharding, EMA, checkpoints and metrics."""
