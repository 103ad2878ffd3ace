"""Run an experiment: plan, tasks, parts, and the final summary."""
