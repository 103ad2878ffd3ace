"""A host over several daemons: its sessions spread over the members of a pod, segment by segment.

The agent and the decode loop do not know it: they speak to `PodSessions` where one daemon has its
`Control`, and to `PodFabric` where it has its fabric. `Joined` is one member as this host sees it.
"""
