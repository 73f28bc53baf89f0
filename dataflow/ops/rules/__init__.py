"""Rules of ops that are graphs of their own: bodies, cells, and what several families build of them."""
