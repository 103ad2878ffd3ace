"""What binds a run: the tree of its figures, and a re-run with one part changed that checks it."""
