def export_run(t): return "x"
