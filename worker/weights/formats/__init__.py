"""From the tensors that a matrix is stored in to rows of the plain matrix, one file per format."""
