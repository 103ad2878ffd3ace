"""The object archive (G4): copies of kept chunks in a bucket of an S3 server."""
