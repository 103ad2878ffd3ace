"""An experiment at work: plan, tasks, parts, and the summary at the end."""
