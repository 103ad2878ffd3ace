"""A host over several daemons: its sessions spread over the members of a pod, shard by shard.

The agent and the decode loop do not know that there is a pod: `PodSessions` takes the place of a
daemon's `Control`, and `PodFabric` that of its fabric. `Joined` is one member as this host sees it.
"""
