"""Where batches come from: one file per kind of source, their order, and the threads that read ahead."""
