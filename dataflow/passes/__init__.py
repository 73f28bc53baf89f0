"""Graph -> Graph: each pass is a function that returns a new graph."""
