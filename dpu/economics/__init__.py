"""What writing costs the drive, and what the daemon decides by that."""
