"""WorldAgent-Benchmark: can a model keep a world running? (papers/world_agent.txt; docs/world_agent.md)"""
