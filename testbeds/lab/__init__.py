"""The prefetch laboratory: experiments in virtual time on the daemon's decision core."""
