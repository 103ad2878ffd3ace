"""What the sessions ask for: request traces, arrivals, plans and score processes."""
