"""The object archive (G4): copies of archived chunks in a bucket of an S3 server."""
