"""What a tier costs, which one binds and when it pays: `offstage plan`."""
