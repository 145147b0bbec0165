"""Operations on tensors: one interface, one module of kernels per device, weights as kernels read them."""
