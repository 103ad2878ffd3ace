"""The daemon's answers: one method for each control call, and the attaching of hosts."""
