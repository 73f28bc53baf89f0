"""Training: losses, optimizers, data, and the Trainer that runs the programs."""
