"""Uses of every op at interesting shapes, one file per family."""
