"""Control flow on the host, for models whose data decide in loops which nodes there are."""
