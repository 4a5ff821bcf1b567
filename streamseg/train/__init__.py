"""Train a network: config and recipes, setup, batches, losses, the loop, log and resume."""
