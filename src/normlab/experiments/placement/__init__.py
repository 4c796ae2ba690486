"""Chapter 5: stacks at initialization, in training, and their drawings."""
