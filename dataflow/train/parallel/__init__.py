"""Data parallelism: several processes train one model, each on its share of every batch."""
