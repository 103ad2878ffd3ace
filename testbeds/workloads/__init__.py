"""The load of the sessions: request traces, arrivals, plans and score processes."""
