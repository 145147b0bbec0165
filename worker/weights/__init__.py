"""From tensors of a checkpoint to the parameters of a model."""
