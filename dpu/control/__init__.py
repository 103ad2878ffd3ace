"""What the daemon answers: one method for each control call, and how a host is attached."""
